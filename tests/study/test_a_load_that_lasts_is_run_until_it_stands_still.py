"""A load that lasts: a queue that grows is recognised, one replica of many fares as all do."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sim import Plan, Simulate, Workload
from sim.results.chance import chance_of_figures
from sim.results.metrics import latency_figures, request_latencies_ms
from sim.study import lasting
from sim.study.deployment import Deployment
from sim.study.fleet_spec import Fleet, PoolSpec
from sim.study.lasting import Lasts, can_last, one_of_many, part_of_many
from sim.study.run import planned, run_pools


def study(rate, replicas=1, gpu="H100", **drawn):
    workload = Workload.drawn(60, request_rate=rate, **drawn)
    return Simulate(Deployment.of("Llama-3.1-8B", gpu, max_model_len="auto", replicas=replicas), workload).study()


def ttft(limit_ms, statistic="p99"):
    name = f"{statistic}_ttft_ms"
    return lambda latency: [latency_figures(latency, [name])[name] / limit_ms]


@pytest.mark.parametrize(("rate", "grows"), [(15.0, False), (40.0, True)])
def test_a_queue_that_grows_without_end_is_recognised(rate, grows):
    assert Lasts(study(rate)).trial(0, ttft(1e6)).grows is grows


def test_a_short_load_meets_what_a_lasting_one_does_not():
    crowd = study(500.0, 13, input_len=1000, output_len=200, length_cv=1.0)
    short, good = Lasts(crowd, 4.0).trial(0, ttft(2000)), Lasts(crowd).trial(0, ttft(2000))
    assert short.requests == 2000
    assert max(short.used) < 1.0 < max(good.used)
    assert good.grows


def test_one_of_many_replicas_fares_as_all_do():
    whole = study(24.0, 3, "L40S", output_len=32)
    assert one_of_many(whole).deployment.replicas == 1
    one = Lasts(whole)
    every = Lasts(replace(whole, deployment=replace(whole.deployment, router="random")))
    every.study, every.pools = whole, planned(whole)  # dealt out in turn, and none left out
    used = [[load.trial(i, ttft(1000, "mean")).used[0] for i in range(8)] for load in (one, every)]
    error = np.sqrt(sum(np.var(each, ddof=1) / len(each) for each in used))
    assert abs(np.mean(used[0]) - np.mean(used[1])) < 4 * error


def test_a_trace_lasts_as_long_as_it_does():
    trace = Workload.from_arrays([0.0, 1.0], [10, 10], [2, 2])
    assert not can_last(trace)
    with pytest.raises(ValueError, match="lasts as long as it does"):
        Plan({}, trace, ("ttft:p99<1s",), for_s=10.0)


@pytest.mark.parametrize(("mean", "by_rates", "least", "most"), [(0.9, 0.0, 0.99, 1.0), (0.9, 0.1, 0.6, 0.97), (1.1, 0.0, 0.0, 0.01)])
def test_the_trials_own_errors_are_not_taken_for_what_rates_do(mean, by_rates, least, most):
    rng, noise = np.random.default_rng(0), 0.1
    used = mean * np.exp(by_rates * rng.standard_normal((200, 1)) + noise * rng.standard_normal((200, 1)))
    chance = chance_of_figures(used, noise * used, np.zeros(200, dtype=bool))
    assert least <= chance.value <= most
    assert chance.low <= chance.value <= chance.high


def test_a_part_of_a_large_fleet_fares_nearly_as_the_whole(monkeypatch):
    """8 of 32 replicas with a quarter of the requests: a smaller pool evens out less, so that it errs on the safe side."""
    whole = study(32 * 6.0, 32, "L40S", output_len=32, length_cv=1.0)
    whole = replace(whole, deployment=replace(whole.deployment, router="least-requests"))
    every = Lasts(whole)
    monkeypatch.setattr(lasting, "WHOLE", 8)
    part = Lasts(whole)
    assert [load.study.deployment.replicas for load in (every, part)] == [32, 8]
    found = [[load.trial(i, ttft(1000, "mean")) for i in range(4)] for load in (every, part)]
    used = [np.mean([trial.used[0] for trial in each]) for each in found]
    tokens = [np.mean([trial.tokens_per_s for trial in each]) for each in found]
    print(f"mean TTFT {1e3 * used[0]:.1f} ms of the whole, {1e3 * used[1]:.1f} of the part")
    assert 0.98 < used[1] / used[0] < 1.1
    assert tokens[1] == pytest.approx(tokens[0], rel=0.1)


@pytest.mark.parametrize(("per_replica", "least", "most", "fills"), [(9.0, 1.03, 1.12, 0.95), (11.0, 1.05, 1.35, 1.05)])
def test_near_saturation_a_part_differs_by_pooling_and_a_short_whole_by_its_start(per_replica, least, most, fills):
    """8 of 32 replicas, paired seeds, median rates. 12 requests/s a replica are too many."""

    def mean_ms(replicas, requests, seed):
        fleet = study(per_replica * replicas, replicas, "L40S", output_len=32, length_cv=1.0)
        fleet = replace(fleet, deployment=replace(fleet.deployment, router="least-requests"))
        found = request_latencies_ms(run_pools(fleet, planned(fleet), fleet.workload.redraw(seed, requests)))["ttft"]
        return float(found[requests // 4 :].mean())

    runs = [[mean_ms(*load, seed) for load in ((8, 8_000), (32, 32_000), (32, 8_000))] for seed in range(6)]
    part, whole, short = np.exp(np.log(runs).mean(axis=0))
    print(f"{per_replica}/s a replica: {100 * (part / whole - 1):+.0f} %, against a short whole {100 * (part / short - 1):+.0f} %")
    assert least < part / whole < most
    assert whole / short > fills


def test_a_part_keeps_the_ratio_of_its_pools():
    d = Deployment.of("Llama-3.1-8B", "H100", max_model_len="auto")
    pools = tuple(PoolSpec(replace(d, replicas=n), name=role, role=role) for n, role in ((30, "prefill"), (70, "decode")))
    part, share = part_of_many(Simulate(Fleet(pools), Workload.drawn(60, request_rate=100.0)).study())
    assert [pool.deployment.replicas for pool in part.fleet.pools] == [18, 42]
    assert share == pytest.approx(0.6)


def test_sessions_that_think_are_counted_once_as_many_are_under_way_as_for_good():
    """Sessions go on for minutes: a thousand requests come and go while they still gather, at a third of the load that lasts."""
    load = Lasts(study(0.5, turns=8, think_time_s=60.0, input_len=100, output_len=50))
    found = load.trial(0, ttft(1000))
    assert found.tokens_per_s == pytest.approx(0.5 * 8 * 50, rel=0.06)
    assert load.trial(1, ttft(1000)).tokens_per_s == pytest.approx(0.5 * 8 * 50, rel=0.06)


def test_a_crowd_of_sessions_that_fails_before_all_are_there_has_failed():
    load = Lasts(study(1.0, 1, "L40S", turns=8, think_time_s=60.0, input_len=1000, output_len=200))
    found = load.trial(0, ttft(1000))
    assert found.used[0] > 1.0
    assert found.requests < lasting.MOST


def test_what_counts_of_sessions_begins_once_caches_hold_those_before():
    """TTFT rises for one and a half times as long as sessions go on; a mean over what comes between would be lower."""
    turns, gap_s = 8, 60.0

    def run(requests):
        starts = np.arange(requests // turns) * 1.0
        arrival = (starts[:, None] + gap_s * np.arange(turns)).ravel()
        ttft_s = np.minimum(arrival / (1.5 * gap_s * (turns - 1)), 1.0)
        columns = {"arrival_s": arrival, "first_token_s": arrival + ttft_s, "finish_s": arrival + ttft_s + 1.0}
        columns |= {"cancelled_s": np.full(len(arrival), np.nan), "generated_tokens": np.full(len(arrival), 10)}
        return SimpleNamespace(requests=columns, session_ids=[str(i) for i in range(len(starts)) for _ in range(turns)]), starts[-1]

    assert lasting.until_still(run, ttft(2000.0, "mean")).used[0] == pytest.approx(0.5, rel=0.01)
