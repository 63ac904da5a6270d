"""A decode's read of KV that another running request holds, too, costs a share of a first read: in the price, and in what engines count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost.attention import reread
from sim.engine.config import EngineConfig
from sim.engine.interface import Iteration, Request
from sim.engine.iteration_cost import IterationCost
from sim.engine.schedulers import SglangScheduler, VllmScheduler
from sim.engine.step_clock import charged
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from tests.price.shapes import QWEN_7B, plausible_rates

BLOCK, PREFIX = 16, 4096


def request(name: str, shared: int, prompt: int = PREFIX + 16) -> Request:
    blocks = [("prefix", i) if i < shared // BLOCK else (name, i) for i in range(prompt // BLOCK)]
    return Request(name, 0.0, prompt, 64, blocks)


def decodes(shared: int, count: int = 8, scheduler: type = VllmScheduler) -> tuple[VllmScheduler, Iteration]:
    """An engine that has read the prompts, and its first iteration of decodes alone."""
    config = EngineConfig(num_gpu_blocks=8192, block_size=BLOCK, max_num_seqs=64, max_num_batched_tokens=8192, max_model_len=8192)
    engine = scheduler(config)
    for i in range(count):
        engine.add(request(str(i), shared))
    while True:
        iteration = engine.schedule()
        if all(tokens == 1 for _, tokens in iteration.scheduled) and len(iteration.scheduled) == count:
            return engine, iteration
        engine.complete(iteration)


def test_a_radix_tree_counts_what_its_holders_share() -> None:
    engine, iteration = decodes(PREFIX, scheduler=SglangScheduler)
    assert iteration.shared == (7 * PREFIX, PREFIX)
    assert decodes(0, scheduler=SglangScheduler)[1].shared == (0, 0)
    while len(engine.running) > 1:
        assert engine.shared[0] > 0
        engine.complete(iteration)
        iteration = engine.schedule()
    assert engine.shared == (0, 0)


def test_what_all_but_one_holder_read_is_counted_until_they_leave() -> None:
    engine, iteration = decodes(PREFIX)
    assert iteration.shared == (7 * PREFIX, PREFIX)
    for left in range(6, -1, -1):
        engine.cancel(iteration.scheduled[left + 1][0])
        assert engine.shared == (left * PREFIX, PREFIX * (left > 0))


def test_decodes_of_one_prefix_cost_as_much_as_their_charged_tokens() -> None:
    cost = IterationCost(QWEN_7B, Precision(), plausible_rates())
    (_, together), (_, apart) = decodes(PREFIX), decodes(0)
    held, full = (sum(r.computed_tokens for r, _ in each.scheduled) for each in (together, apart))
    assert apart.shared == (0, 0)
    (alone,), (shared,) = cost.batches(apart), cost.batches(together)
    assert (alone.decode_context, shared.decode_context) == (full, held - 3 * 7 * PREFIX // 5)
    assert cost(together).ticks < cost(apart).ticks


@given(context=st.integers(64, 2**20), batch=st.integers(1, 64), chunks=st.integers(0, 8), shared=st.integers(0, 2**22))
def test_no_decode_is_charged_less_than_two_fifths_of_its_context(context: int, batch: int, chunks: int, shared: int) -> None:
    found = charged(context, batch, batch + chunks, shared, 0, 600, 1)
    assert 2 * context <= 5 * found <= 5 * context
    assert found >= charged(context, batch, batch, shared, 0, 600, 1)
    assert charged(context, batch, batch, shared, 0, 0, 1) == context


def test_each_wave_of_sequences_reads_a_prefix_once_more() -> None:
    one, sixteen = (charged(64 * 8192, 64, 64, (64 - groups) * 8192, groups * 8192, 400, 8) for groups in (1, 16))
    waves = 64 * 8 / 132
    assert one == pytest.approx(64 * 8192 - 0.4 * (64 - waves) * 8192, rel=1e-4)
    assert sixteen == pytest.approx(64 * 8192 - 0.4 * 16 * (4 - waves) * 8192, rel=1e-4)
    assert charged(64 * 8192, 64, 64, 32 * 8192, 32 * 8192, 400, 8) == 64 * 8192


def test_l2_feeds_the_same_chip_as_quickly_beside_quicker_memory() -> None:
    llama, latent = get_model("Llama-3.1-8B"), get_model("DeepSeek-V3")
    shares = [reread(llama, Precision(), gpu, 1, 0.9 * gpu.memory_bandwidth)[0] for gpu in map(get_gpu, ("H100", "H200"))]
    assert shares[1] / shares[0] == pytest.approx(4.8 / 3.35)
    assert reread(llama, Precision(), get_gpu("H200"), 2, 1e13) == (1.0, 4)
    assert reread(llama, Precision("bf16", "fp8"), get_gpu("H200"), 1, 3e12)[0] == 1.0
    assert reread(llama, Precision(), get_gpu("L40S"), 1, 1e12) == (0.4, 8)
    assert reread(latent, Precision(), get_gpu("H200"), 1, 4e12) == (1.0, 2)
    assert reread(latent, Precision(), get_gpu("H200"), 8, 4e12)[0] < 0.8


@pytest.mark.parametrize("beside", [0, 512])
def test_a_mixed_iteration_charges_its_chunks_in_full(beside: int) -> None:
    cost = IterationCost(QWEN_7B, Precision(), plausible_rates())
    chunks = [(beside, beside, 1)] if beside else []
    whole, shared = (
        [each.decode_context, each.prefill_context] for tokens in (0, 5000) for each in cost.batches_of([4000] * 4, chunks, (), (tokens, 0))
    )
    assert whole[1] == shared[1] == float(beside)
    assert whole[0] - shared[0] == 3 * 5000 * 4 // (5 * (4 + len(chunks)))
