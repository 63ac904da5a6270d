"""Pipeline stages, data-parallel ranks, whole experts, eager iterations: both paths agree, and what must cost more does."""

from dataclasses import replace

import numpy as np
import pytest

from sim.cost.coefficients import coefficients
from sim.engine.overlap import HostWork
from sim.rates.load import load_rates, scope_notes
from sim.rates.serving import NO_HOST
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.parallel import Parallel
from sim.study.deployment import Deployment, Limits
from sim.study.simulate import run_study
from sim.study.studied import Study
from sim.workload.synthetic import Synthetic, draw
from sim.workload.workload import Workload

LOAD = Synthetic(60, 3000, 40, length_cv=0.8, prefix_tokens=200, rate_per_s=20.0)


def study(model="Qwen3-30B-A3B", load=LOAD, seed=0, **more):
    d = Deployment(get_model(model), get_gpu("H100"), **more)
    return Study(d, Workload(draw(load, np.random.default_rng(seed))), load_rates(d, draws=20))


CASES = {
    "stages": study("Llama-3.1-8B", parallel=Parallel(2)),
    "ranks": study(parallel=Parallel(1, 2)),
    "ranks of whole experts": study(parallel=Parallel(1, 4, True)),
    "stages of two, ranks, whole experts": study(tp=2, parallel=Parallel(2, 2, True)),
    "eager": study("Llama-3.1-8B", limits=Limits(enforce_eager=True)),
    "eager ranks, one after another": study(
        parallel=Parallel(1, 2), limits=Limits(enforce_eager=True, options={"async_scheduling": False})
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fast_and_logged_runs_are_the_same(name):
    logged = run_study(CASES[name], draws=0).record
    fast = run_study(CASES[name], draws=0, keep_iterations=False).record
    assert not len(fast.iterations["start_s"])
    for column, values in logged.requests.items():
        np.testing.assert_array_equal(values, fast.requests[column], column)


def figures(case):
    return run_study(case, draws=0, keep_iterations=False).summary


def test_stages_do_not_make_one_answer_faster_but_many():
    one = replace(LOAD, num_prompts=1)
    alone, staged = (figures(study("Llama-3.1-8B", one, parallel=Parallel(pp)))["mean_tpot_ms"] for pp in (1, 4))
    assert staged > alone
    many = replace(LOAD, num_prompts=400, rate_per_s=float("inf"))
    alone, staged = (figures(study("Llama-3.1-8B", many, parallel=Parallel(pp)))["output_throughput"] for pp in (1, 4))
    assert 1.5 * alone < staged < 4.0 * alone


def test_eager_decodes_are_slower_and_less_certain():
    idle = replace(LOAD, rate_per_s=0.5)
    captured, eager = (run_study(study("Llama-3.1-8B", idle, limits=Limits(enforce_eager=on)), draws=20) for on in (False, True))
    assert eager.summary["mean_tpot_ms"] > 1.2 * captured.summary["mean_tpot_ms"]
    widths = [high / low for low, high in (run.rate_intervals["mean_tpot_ms"] for run in (captured, eager))]
    assert widths[1] > 1.3 * widths[0]


def test_a_host_that_launches_every_kernel_hides_nothing_behind_the_gpu():
    """One stream without graphs: preparing an iteration and launching it take turns on the host, whatever the GPU does meanwhile."""
    one, work = Synthetic(1, 100, 200, rate_per_s=1.0), HostWork(2e-3)
    case = study("Llama-3.2-1B", one, limits=Limits(enforce_eager=True))
    hidden = study("Llama-3.2-1B", one)
    launching_s = coefficients(case.deployment.model, case.deployment.precision).launch_layers * case.rates.point.launch_layer_s
    token_s = 1e-3 * figures(replace(case, host=replace(NO_HOST, work=work)))["mean_tpot_ms"]
    assert token_s == pytest.approx(launching_s + work.iteration_s, rel=0.03)
    assert figures(replace(hidden, host=replace(NO_HOST, work=work)))["mean_tpot_ms"] < 1.1 * figures(hidden)["mean_tpot_ms"]


@pytest.mark.parametrize("parallel", [Parallel(2), Parallel(1, 2), Parallel(1, 2, True)])
def test_answers_say_what_was_measured_once(parallel):
    case = study(parallel=parallel)
    assert any(
        "wider, by how far predictions of 3 measured deployments of this kind were off: parallel" in note and note.startswith("slower by ")
        for note in scope_notes(case.deployment, case.rates)
    )
