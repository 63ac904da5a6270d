"""Intervals of the rates: 20 runs with a control variate are as wide as 200 runs, of any kind of server and length of load."""

import math

import numpy as np
import pytest

import sim.study.simulate
from sim.results.intervals import between_replicates, rate_intervals
from sim.results.metrics import summarise
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Deployment, Limits
from sim.study.fleet_spec import Fleet, PoolSpec
from sim.study.run import planned, run_pools
from sim.study.simulate import DEFAULT_DRAWS, _shortened, run_study
from sim.study.simulate_question import Simulate
from sim.workload.workload import Workload

WITHIN = 0.25
LATENCIES = [f"{which}_{name}_ms" for name in ("ttft", "tpot", "e2el") for which in ("mean", "median", "p90", "p99")]


def on_h100(model="Llama-3.1-8B", **more):
    return Deployment(get_model(model), get_gpu("H100"), **more)


def disaggregated():
    pools = (PoolSpec(on_h100(), "prefill", "prefill"), PoolSpec(on_h100(), "decode", "decode"))
    return Fleet(pools)


KINDS = {
    "dense": (on_h100, 10.0),
    "drafts": (lambda: on_h100(limits=Limits(options={"draft_tokens": 3, "drafter": "ngram", "acceptance": 0.6})), 10.0),
    "sglang": (lambda: on_h100(limits=Limits(engine="sglang")), 10.0),
    "window": (lambda: on_h100("Gemma-3-12B"), 5.0),
    "int4": (lambda: on_h100(precision=Precision("int4")), 10.0),
    "disaggregated": (disaggregated, 10.0),
}


def study_of(kind, requests):
    deployment, rate = KINDS[kind]
    return Simulate(deployment(), Workload.drawn(requests, request_rate=rate, length_cv=0.5)).study()


def widths(intervals):
    return {name: math.log(intervals[name][1] / intervals[name][0]) for name in LATENCIES}


def by_200_runs(study):
    pools, trace = planned(study), study.workload.trace
    found = [summarise(run_pools(study, pools, trace, draw), {}) for draw in range(200)]
    return widths(rate_intervals({name: [float(each[name]) for each in found] for name in LATENCIES}))


def off(study):
    """Latencies whose width is not within WITHIN of that by 200 runs, with both; the rates know few intervals to less than a hundredth."""
    known, found = by_200_runs(study), widths(run_study(study, keep_iterations=False).rate_intervals)
    return {name: (found[name], known[name]) for name in LATENCIES if abs(found[name] - known[name]) > WITHIN * known[name] + 0.01}


def test_a_dense_servers_means_and_medians():
    assert not {name for name in off(study_of("dense", 200)) if not name.startswith("p")}


@pytest.mark.slow
@pytest.mark.parametrize("requests", [2_000, 30_000])
@pytest.mark.parametrize("kind", KINDS)
def test_every_percentile_of_six_kinds(kind, requests):
    assert not off(study_of(kind, requests))


def test_one_request_more_changes_no_interval(monkeypatch):
    """Beyond what is run at each draw, the load's first requests say how wide it is."""
    monkeypatch.setattr(sim.study.simulate, "REQUESTS_OF_DRAWS", 300 * sim.study.simulate.DEFAULT_DRAWS)
    trace = Workload.drawn(301, request_rate=10.0, length_cv=0.5).trace
    few, more = (
        widths(run_study(Simulate(on_h100(), Workload(each)).study(), keep_iterations=False).rate_intervals)
        for each in (trace.head(300), trace)
    )
    for name, width in few.items():
        assert more[name] == pytest.approx(width, rel=0.02), name


@pytest.mark.parametrize(("output", "kept"), [(96, 100), (256, 50), (1_536, 10), (16_000, 4)])
def test_of_a_load_of_long_requests_fewer_are_run_at_each_draw(monkeypatch, output, kept):
    """A prompt of 1,024 tokens and 96 more count once, and what is kept are LEAST_OF_DRAW at least."""
    monkeypatch.setattr(sim.study.simulate, "LEAST_OF_DRAW", 4)
    study = Simulate(on_h100(), Workload.drawn(101, request_rate=10.0, input_len=1_024, output_len=output)).study()
    assert len(_shortened(study, 100 * DEFAULT_DRAWS).prompt_tokens) == kept


@pytest.mark.parametrize("kind", ["drafts", "sglang", "disaggregated"])
def test_kinds_that_cost_more_a_run_have_intervals_unasked(kind):
    low, high = run_study(study_of(kind, 12), keep_iterations=False).rate_intervals["mean_tpot_ms"]
    assert high > 1.02 * low


def test_a_control_variate_recovers_quantiles_of_a_known_response():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 2))
    y = np.exp(0.3 * x[:, 0] + 0.1 * x[:, 0] ** 2 + 0.2 * x[:, 1])
    truth = np.quantile(y, [0.05, 0.95])
    errors = {True: [], False: []}
    for trial in range(50):
        order = np.random.default_rng(trial).permutation(len(x))
        for given in errors:
            found = rate_intervals({"y": y[order[:20]]}, x[order] if given else None)["y"]
            errors[given].append(np.abs(np.log(found / truth)).max())
    assert np.median(errors[True]) < 0.3 * np.median(errors[False])


def test_predictors_that_predict_nothing_change_nothing_much():
    rng = np.random.default_rng(1)
    noise = np.exp(0.1 * rng.standard_normal(20))
    plain, with_variate = (rate_intervals({"y": noise}, given)["y"] for given in (None, rng.standard_normal((1600, 3))))
    assert with_variate == pytest.approx(plain, rel=0.03)


def test_a_closed_loop_of_equal_requests_has_run_noise():
    """Repeats of it are alike to the tick; replicates on a server are not."""
    workload = Workload.drawn(16, max_concurrency=4)
    noise = run_study(Simulate(on_h100(), workload).study(), keep_iterations=False).noise
    for name in LATENCIES:
        low, high = noise[name]
        assert high > 1.01 * low, name


def test_replicates_add_in_quadrature_of_logarithms():
    low, high = between_replicates({"mean_ttft_ms": 10.0}, {"mean_ttft_ms": (9.0, 11.0)})["mean_ttft_ms"]
    sd = 1.6448536 * 0.04
    assert math.log(10 / low) == pytest.approx(math.hypot(math.log(10 / 9), sd))
    assert math.log(high / 10) == pytest.approx(math.hypot(math.log(1.1), sd))
