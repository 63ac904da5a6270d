"""llama.cpp on a card where no server of it was measured: held-out steps, one price in all commands, and what is refused."""

import numpy as np
import pytest

from sim.cost.batch import decode_batch, mixed_batch
from sim.engine.step_clock import StepTime
from sim.rates.load import load_rates
from sim.study.deployment import Deployment
from sim.study.prices import step_time
from studies.llamacpp_steps import HELD_OUT, predicted, steps
from tests.cli import run


@pytest.mark.parametrize(("held_out", "error"), [*zip(HELD_OUT, (0.1, 0.25, 0.15, 0.2), strict=True)])
def test_steps_of_a_model_held_out_lie_inside(held_out, error):
    found = [(step.seconds, *predicted(step, step.dtype)[:3]) for step in steps() if (step.model, step.dtype) == held_out]
    seconds, point, low, high = np.array(found).T
    assert len(found) == 20
    assert np.median(np.abs(seconds / point - 1.0)) < error
    assert np.mean((low <= seconds) & (seconds <= high)) >= 0.85


@pytest.mark.parametrize("dtype", ["q4_k_m", "q8_0", "bf16"])
@pytest.mark.parametrize("gpu", ["H100", "H200", "A100-80G"])
def test_a_simulated_step_costs_what_the_closed_form_says(gpu, dtype):
    d = Deployment.of("Llama-3.1-8B", gpu=gpu, engine="llamacpp", dtype=dtype)
    rates = load_rates(d).point
    clock = StepTime(d.model, d.precision, rates, gpu=d.gpu, micro_batch=512, block_size=16)
    for shape in (decode_batch(d.model, 3.0, 1000.0), mixed_batch(d.model, [], [(400, 400, True)])):
        assert clock.work(shape) == pytest.approx(d.work(shape), rel=1e-9)


def test_rows_count_for_kernels_that_take_one_after_the_other():
    def seconds(sequences, **asked):
        d = Deployment.of("Llama-3.1-8B", gpu="H100", **asked)
        return step_time(d, [64] * sequences, (), load_rates(d)).terms["linear layers"]

    assert seconds(8, engine="llamacpp", dtype="q4_k_m") > 3 * seconds(1, engine="llamacpp", dtype="q4_k_m")
    assert seconds(8, engine="llamacpp", dtype="q8_0") > 2 * seconds(1, engine="llamacpp", dtype="q8_0")
    assert seconds(8) < 1.1 * seconds(1)


def test_a_hosts_speed_is_of_servers_that_were_measured():
    asked = ("--gpu", "H100", "--model", "Llama-3.1-8B", "--engine", "llamacpp", "--dtype", "q4_k_m", "--host-scale", "2")
    code, out, err = run("simulate", *asked, "--request-rate", "1", "--num-prompts", "5")
    assert (code, out) == (2, "")
    assert "no llama.cpp server was measured on H100" in err
    assert len(err.strip().splitlines()) == 1
