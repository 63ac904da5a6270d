"""Decodes cost the rows of the next size that their engine captures, and beyond a limit that was set launch kernel by kernel."""

from dataclasses import replace

import pytest

from sim.cost.graphs import sglang_sizes, vllm_sizes
from sim.engine.config import EngineConfig
from sim.engine.interface import Iteration, Request
from sim.engine.iteration_cost import IterationCost
from sim.engine.registry import step_settings
from sim.specs.precision import Precision
from sim.ticks import TICK_S
from tests.price.shapes import QWEN_7B, plausible_rates

RATES = replace(plausible_rates(), linear_flops_per_s=1e12, launch_layer_s=0.0)  # a row more is seen


def steps_of(rates=RATES, **settings):
    return IterationCost(QWEN_7B, Precision(), rates, **settings)


def by_engine(engine, most=0, rates=RATES):
    return steps_of(rates, **step_settings(EngineConfig(scheduler=engine, options={"cuda_graph_max_bs": most} if most else {})))


def decodes(batch):
    return Iteration([(Request(str(i), 0.0, 100, 50, computed_tokens=127, generated_tokens=28), 1) for i in range(batch)])


def ticks(cost, batch):
    return cost(decodes(batch)).ticks


def test_sizes_of_engines():
    assert vllm_sizes(100) == (1, 2, 4, *range(8, 97, 8))
    assert sglang_sizes(100) == (1, 2, 4, 8, 12, *range(16, 97, 8), 100)
    assert sglang_sizes(600)[-5:] == (496, 512, 544, 576, 600)
    assert sglang_sizes(3) == (1, 2, 3)


@pytest.mark.parametrize(("engine", "sizes"), [("vllm", vllm_sizes), ("sglang", sglang_sizes)])
@pytest.mark.parametrize("most", [0, 12, 100, 300])
def test_every_batch_costs_the_next_size_up(engine, sizes, most):
    steps, captured = by_engine(engine, most), sizes(most or 512)
    for batch in (1, 3, 5, 9, 11, 12, 13, 95, 97, 100, 129, 249, 301, 512, 513):
        rows = next((size for size in captured if size >= batch), batch)
        assert ticks(steps, batch) == pytest.approx(ticks(steps_of(decode_sizes=[rows]), batch), rel=1e-4)
        if rows > batch:
            assert ticks(steps, batch) > 1.001 * ticks(steps_of(decode_sizes=[batch]), batch)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_chords_that_arrays_and_machine_code_take_are_the_prices_one_by_one(engine):
    chords, one_by_one = by_engine(engine), by_engine(engine, 512)
    assert chords.steps.jumps > one_by_one.steps.jumps
    for batch in range(1, 513):
        assert ticks(chords, batch) == pytest.approx(ticks(one_by_one, batch), rel=1e-4)


def test_beyond_a_limit_the_host_launches_kernel_by_kernel():
    slow_host = by_engine("sglang", 100, replace(RATES, launch_layer_s=0.1))
    assert ticks(slow_host, 101) * TICK_S == pytest.approx(0.1 * QWEN_7B.layers, rel=0.1)
    assert ticks(slow_host, 100) == ticks(by_engine("sglang", 100), 100)
    assert ticks(by_engine("sglang", 100), 101) == pytest.approx(ticks(steps_of(decode_sizes=[101]), 101), rel=1e-9)
