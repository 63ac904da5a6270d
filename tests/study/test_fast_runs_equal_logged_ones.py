"""A study without the iteration log takes the fast path and gives the same requests, bit by bit; draws are common random numbers."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sim.cluster.admission import AdmissionLimits
from sim.engine.iteration_cost import IterationCost
from sim.rates.load import load_rates
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.study.deployment import Deployment, Limits
from sim.study.simulate import run_study
from sim.study.studied import Study
from sim.workload.synthetic import Synthetic, draw
from sim.workload.workload import Workload
from tests.runs import run_fast


def study(spec, seed=0, **more):
    workload = Workload(draw(spec, np.random.default_rng(seed)), more.pop("max_concurrency", None))
    deployment = Deployment(get_model("Llama-3.1-8B"), get_gpu("A10"), **more)
    return Study(deployment, workload, load_rates(deployment, draws=20))


OPEN = Synthetic(120, 400, 40, length_cv=0.8, prefix_tokens=200, rate_per_s=4.0, burstiness=0.5)
CASES = {
    "one replica": study(OPEN),
    "three in turn": study(replace(OPEN, rate_per_s=12.0), replicas=3),
    "starved": study(OPEN, limits=Limits(num_gpu_blocks=150, enable_prefix_caching=False, options={"async_scheduling": False})),
    "starved, with prefixes, ahead": study(OPEN, limits=Limits(num_gpu_blocks=150)),
    "sessions": study(replace(OPEN, turns=4, think_s=0.5)),
    "closed loop": study(replace(OPEN, rate_per_s=math.inf), max_concurrency=8),
    "closed loop of sessions": study(replace(OPEN, turns=3, think_s=0.2, rate_per_s=9.0), max_concurrency=5),
    "sessions, starved": study(replace(OPEN, turns=3, rate_per_s=20.0), limits=Limits(num_gpu_blocks=260)),
    "ahead": study(OPEN, limits=Limits(options={"async_scheduling": True})),
    "sessions where their prefix is": study(replace(OPEN, turns=4, think_s=0.5), replicas=2, router="prefix-affinity"),
    "closed loop by load": study(replace(OPEN, rate_per_s=math.inf), replicas=3, router="lmetric", max_concurrency=9),
    "routed late by loads seen late": study(
        replace(OPEN, rate_per_s=12.0),
        replicas=3,
        router="unified",
        router_options={"dispatch_s": 0.05, "snapshot_s": 0.5, "reserve_s": 0.05},
    ),
    "turned away": study(replace(OPEN, rate_per_s=20.0), admission=AdmissionLimits(max_queue=4)),
    "no caching": study(OPEN, limits=Limits(enable_prefix_caching=False, max_num_seqs=4)),
}


@pytest.mark.parametrize("name", CASES)
def test_same_requests(name):
    case = CASES[name]
    logged = run_study(case, draws=0).record
    fast = run_study(case, draws=0, keep_iterations=False).record
    assert not len(fast.iterations["start_s"])
    for column, values in logged.requests.items():
        np.testing.assert_array_equal(values, fast.requests[column], column)
    if "starved" in name:
        assert logged.requests["preemptions"].sum() > 0


@pytest.mark.parametrize("name", CASES)
def test_it_really_was_the_fast_path(name):
    case = CASES[name]
    config = run_study(case, draws=0).config
    steps = IterationCost(case.deployment.model, case.deployment.precision, case.rates.point).steps
    assert run_fast(case.workload.trace, config, steps, case.host, max_concurrency=case.workload.max_concurrency) is not None


def test_sessions_and_closed_loops_have_intervals_without_being_asked():
    for case in (CASES["sessions"], CASES["closed loop"]):
        result = run_study(case)
        low, high = result.rate_intervals["mean_tpot_ms"]
        assert low < result.summary["mean_tpot_ms"] < high


def test_intervals_over_draws_hold_the_workload_fixed():
    result = run_study(CASES["one replica"])
    assert result.rate_intervals["total_input_tokens"] == (result.summary["total_input_tokens"],) * 2
    low, high = result.rate_intervals["mean_tpot_ms"]
    assert low < result.summary["mean_tpot_ms"] < high
    assert run_study(CASES["one replica"]).rate_intervals == result.rate_intervals
