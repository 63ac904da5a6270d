"""Routing policies choose as their formulas say; what a router sees late or counts late, it gets wrong as theory says."""

import csv
import heapq
import math
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.fleet_runs import covers_router
from sim.cluster.policies import LeastRequests, LMetric, Load, PendingTokens, PowerOfTwo, PrefixAffinity, Unified, drawn, draws_of
from sim.cluster.replica import SteppedEngine
from sim.cluster.router import ROUTERS, RoundRobin, make_router, router_options
from sim.cluster.simulation import simulate
from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.schedulers import VllmScheduler
from sim.errors import SimctlError, UsageError
from sim.ticks import to_ticks
from sim.workload.content import Grown
from sim.workload.sources import TraceSource
from sim.workload.trace import TraceBuilder
from tests.runs import AffinePrice, request, trace_of

REFERENCE = Path(__file__).parents[2] / "scenarios/data/reference/routing"
FORMULAS, SETUP = (dict(csv.reader((REFERENCE / name).read_text().splitlines())) for name in ("scoring_formulas.csv", "workload_setup.csv"))
WEIGHT = float(SETUP["lmetric_decode_weight_B"])
VARIANTS = {
    "LMetric original": LMetric(decode_weight=0.0, idle_scores_zero=True),
    "B (buggy)": LMetric(idle_scores_zero=True),
    "B' (fixed)": LMetric(),
}


def loads(*states):
    return [Load(*state) for state in states]


def published(variant, load, new):
    """The score by the published formula's own text."""
    names = {
        "pending_prefill_tokens": load.pending_prefill_tokens,
        "pending_prefill": load.pending_prefill_tokens,
        "new_uncached_tokens": new,
        "new": new,
        "lmetric_decode_weight": WEIGHT,
        "ongoing_decode_tokens": load.ongoing_tokens,
        "num_requests": load.requests,
    }
    return eval(FORMULAS[variant], {"__builtins__": {}, "max": max}, names)


counts = st.builds(Load, st.integers(0, 4), st.integers(0, 9000), st.integers(0, 200_000))


@pytest.mark.parametrize("variant", VARIANTS)
@given(st.lists(st.tuples(counts, st.integers(1, 9000)), min_size=1, max_size=8))
def test_scores_are_the_published_ones(variant, replicas):
    states, new = [load for load, _ in replicas], [tokens for _, tokens in replicas]
    scores = [published(variant, load, tokens) for load, tokens in replicas]
    assert VARIANTS[variant].scores(states, new) == pytest.approx(scores)
    place = VARIANTS[variant](states, [0] * len(new), new)
    assert scores[place] == pytest.approx(min(scores))


@pytest.mark.parametrize(
    ("variant", "scores"),
    [
        ("LMetric original", [0, 164, 128, 64]),
        ("B (buggy)", [0, 164, 168, 94]),
        ("B' (fixed)", [500, 164, 168, 94]),
    ],
)
def test_scores_by_hand(variant, scores):
    # idle, but all of the prompt is new to it; (100 + 64) x 1; (0 + 64 + .01 x 2000) x 2; (0 + 64 + .01 x 3000) x 1
    states = loads((0, 0, 0), (1, 100, 0), (2, 0, 2000), (1, 0, 3000))
    assert VARIANTS[variant].scores(states, [500, 64, 64, 64]) == scores


def test_defaults_are_the_published_parameters():
    assert router_options("unified").items() >= {"overload_factor": float(SETUP["A_overload_factor"]), "decode_weight": WEIGHT}.items()
    assert router_options("prefix-affinity")["overload_factor"] == float(SETUP["A_overload_factor"])
    assert router_options("lmetric")["reserve_s"] == 0.0  # the race fix


def test_the_error_of_the_idle_replica_sends_it_what_is_cached_elsewhere():
    states = loads((0, 0, 0), (1, 0, 5000))
    assert LMetric(idle_scores_zero=True)(states, [0, 100], [5000, 50]) == 0
    assert LMetric()(states, [0, 100], [5000, 50]) == 1


def test_least_requests_counts_requests():
    assert LeastRequests()(loads((2,), (1,), (3,)), [0] * 3, [10] * 3) == 1


TIES = {  # state of each replica, blocks known to it: two replicas are equally good for every policy
    "loads": ([(3, 900, 9000), (1, 50, 500), (1, 50, 500)], [0, 0, 0]),
    "prefixes": ([(1, 50, 500), (1, 50, 500), (1, 50, 500)], [0, 4, 4]),
}


@pytest.mark.parametrize("policy", [LeastRequests, PendingTokens, PrefixAffinity, LMetric, Unified])
@pytest.mark.parametrize("tie", TIES)
def test_ties_are_broken_evenly(policy, tie):
    states, known = TIES[tie]
    tied = 3 if tie == "prefixes" and policy in (LeastRequests, PendingTokens) else 2
    picks = [policy()(loads(*states), known, [80 - 16 * blocks for blocks in known], draws) for draws in drawn(0, 3000).tolist()]
    np.testing.assert_allclose(np.bincount(picks, minlength=3)[-tied:], 3000 / tied, rtol=0.08)
    assert len(set(picks)) == tied


def test_draws_of_a_seed_are_the_same_one_by_one():
    assert list(islice(draws_of(3), 700)) == drawn(3, 700).tolist()


def test_shortest_pending_tokens_counts_prefill_and_then_requests():
    assert PendingTokens()(loads((1, 100), (9, 40), (1, 50)), [0] * 3, [10] * 3) == 1
    assert PendingTokens()(loads((5, 0), (2, 0), (1, 1)), [0] * 3, [10] * 3) == 1


def test_power_of_two_draws_all_pairs_alike_and_takes_the_less_loaded():
    idle, busy = PowerOfTwo(seed=1), PowerOfTwo(seed=2)
    picks = np.bincount([idle(loads(*[(0,)] * 4), [], []) for _ in range(8000)], minlength=4)
    np.testing.assert_allclose(picks, 2000, rtol=0.08)
    # of four replicas, the k-th most loaded wins k - 1 of 6 pairs
    picks = np.bincount([busy(loads((3,), (2,), (1,), (0,)), [], []) for _ in range(6000)], minlength=4)
    np.testing.assert_allclose(picks, [0, 1000, 2000, 3000], rtol=0.1)
    assert idle(loads((7,)), [], []) == 0


@pytest.mark.parametrize("policy", [PrefixAffinity, Unified])
def test_affinity_sticks_until_overloaded(policy):
    assert policy()(loads((3,), (3,), (3,)), [0, 4, 0], [80, 16, 80]) == 1
    assert policy()(loads((3,), (9,), (3,)), [0, 4, 0], [80, 40, 80]) == 0
    assert policy(overload_factor=2.0)(loads((3,), (9,), (3,)), [0, 4, 0], [80, 40, 80]) == 1
    assert policy()(loads((3,), (3,), (3,)), [0, 0, 0], [80] * 3) == 0


def test_unified_falls_back_to_lmetric():
    states, known = loads((2, 900, 0), (9, 0, 0), (3, 0, 0)), [0, 4, 0]
    assert Unified()(states, known, [80, 16, 80]) == LMetric()(states, known, [80, 16, 80]) == 1
    assert Unified()(states, known, [80, 40, 80]) == LMetric()(states, known, [80, 40, 80]) == 2
    assert PrefixAffinity()(states, known, [80, 40, 80]) == 0


def at_arrivals(name, replicas=100, load=0.9, arrivals=20_000, **options):
    """Requests at each replica, as every hundredth arrival finds them: Poisson arrivals, exponential services, first come first served."""
    router, rng = make_router(name, replicas, 16, 10, options), np.random.default_rng(3)
    times = np.cumsum(rng.exponential(1 / (load * replicas), arrivals)).tolist()
    services, free_s = rng.exponential(1.0, arrivals).tolist(), [0.0] * replicas
    queues, leaving, seen = [0] * replicas, [], []
    for number, (now_s, service_s) in enumerate(zip(times, services, strict=True)):
        while leaving and leaving[0][0] <= now_s:
            left_s, _, one, index = heapq.heappop(leaving)
            router.finished(one, index, to_ticks(left_s))
            queues[index] -= 1
        if number % 100 == 0 and number > arrivals // 5:
            seen.append(list(queues))
        one, now = request(), to_ticks(now_s)
        index = router.pick(one, range(replicas), now)
        queues[index] += 1
        free_s[index] = max(free_s[index], now_s) + service_s
        heapq.heappush(leaving, (free_s[index], number, one, index))
    return np.asarray(seen)


def test_power_of_two_has_the_queues_of_mean_field_theory_and_random_those_of_mm1():
    """A share load**(2**k - 1) of the queues has at least k requests with two choices (Mitzenmacher), load**k with one."""
    two, one = at_arrivals("power-of-two"), at_arrivals("random")
    for least in (1, 2, 3, 4):
        assert (two >= least).mean() == pytest.approx(0.9 ** (2**least - 1), abs=0.06)
        assert (one >= least).mean() == pytest.approx(0.9**least, abs=0.06)
    assert two.max(axis=1).mean() < 0.4 * one.max(axis=1).mean()
    assert at_arrivals("least-requests").max(axis=1).mean() < two.max(axis=1).mean()


def test_stale_loads_make_a_herd():
    """All that come in one period choose among the same few replicas: queues grow with the period, and beyond those of random choice."""
    spread = {
        period_s: at_arrivals("least-requests", 20, arrivals=10_000, snapshot_s=period_s).std(axis=1).mean() for period_s in (0, 0.3, 1, 4)
    }
    assert list(spread.values()) == sorted(spread.values())
    assert spread[4] > 1.5 * at_arrivals("random", 20, arrivals=10_000).std(axis=1).mean()
    # two choices cannot herd as much: one of the least loaded is among them by chance only
    assert at_arrivals("power-of-two", 20, arrivals=10_000, snapshot_s=4).std(axis=1).mean() < 0.5 * spread[4]


def test_a_snapshot_is_of_the_beginning_of_its_period():
    router = make_router("least-requests", 2, 16, 10, {"snapshot_s": 1.0})

    def picks(*at_s):
        requests = [request() for _ in at_s]
        return [(each, router.pick(each, range(2), to_ticks(now_s))) for each, now_s in zip(requests, at_s, strict=True)]

    counts = np.bincount([place for _, place in picks(0.5, 0.8, 0.9)], minlength=2)  # as of 0 s: either
    few, many = int(counts.argmin()), int(counts.argmax())
    sent = picks(1.0, 1.3, 1.6, 1.9)
    assert {place for _, place in sent} == {few}  # as of 1 s: 3 and 0, or 2 and 1
    for each, place in sent:
        router.finished(each, place, to_ticks(2.0))  # at that instant, and so not seen before 3 s
    assert {place for _, place in picks(2.0, 2.9)} == {many}
    assert {place for _, place in picks(3.0)} == {few}


def routed(name, calls, replicas=4, **options):
    """Requests that each replica got."""
    engines = [SteppedEngine(VllmScheduler(EngineConfig(num_gpu_blocks=2000)), AffinePrice()) for _ in range(replicas)]
    record = simulate(TraceSource(trace_of(calls), 16), engines, router=make_router(name, replicas, 16, 2000, options))
    return np.bincount(record.requests["replica"], minlength=replicas).tolist(), record


LOADED = [name for name in ROUTERS if "reserve_s" in router_options(name) and name not in ("power-of-two", "weighted")]


@pytest.mark.parametrize("name", LOADED)
def test_simultaneous_requests_race_to_one_replica_unless_reserved_when_picked(name):
    busy, together = [(0.1 * i, 40, 3000) for i in range(3)], [(1.0, 40, 20)] * 8
    assert sorted(routed(name, busy + together, reserve_s=0.01)[0]) == [1, 1, 1, 8]
    assert sorted(routed(name, busy + together, dispatch_s=0.01)[0]) == [2, 3, 3, 3]
    # a window as short as nothing is no race; nor is one that ends before the next comes
    assert sorted(routed(name, busy + together, reserve_s=0.0)[0]) == [2, 3, 3, 3]
    apart = [(1.0 + 0.02 * i, 40, 200) for i in range(8)]
    assert routed(name, apart, reserve_s=0.01)[0] == routed(name, apart)[0]


@pytest.mark.parametrize("name", ROUTERS)
def test_dispatch_delays_every_request_by_itself(name):
    calls = [(2.0 * i, 40, 5) for i in range(6)]
    plain, late = (routed(name, calls, dispatch_s=seconds)[1].requests for seconds in (0.0, 0.125))
    np.testing.assert_array_equal(late["replica"], plain["replica"])
    np.testing.assert_allclose(late["finish_s"] - plain["finish_s"], 0.125, rtol=1e-12)
    assert math.isclose(late["scheduled_s"][0], 0.125)


@pytest.mark.parametrize("name", LOADED)
def test_windows_of_no_length_change_nothing(name):
    calls = [(0.03 * i, 20 + 7 * i % 50, 5 + 3 * i % 40) for i in range(60)]
    plain = routed(name, calls)[1].requests
    for options in ({"snapshot_s": 0.0, "dispatch_s": 0.0}, {"reserve_s": 0.0, "view": "sent"}):
        for column, values in routed(name, calls, **options)[1].requests.items():
            np.testing.assert_array_equal(values, plain[column], column)


def weighted(**options):
    return make_router("weighted", 3, 16, 100, options)


def hashed(name, blocks=10):
    return Request("r", 0.0, 16 * blocks + 1, 4, prompt_hashes=[(name, i) for i in range(blocks)])


def test_weighted_scorers_add_up():
    router = weighted(seed=5)
    first = router.pick(hashed("a"), range(3), 0)
    assert router.pick(hashed("a"), range(3), 0) == first  # prefix 3 against the queue's 2 and what its KV leaves free
    other = weighted(prefix=0.0, kv=0.0)
    assert sorted(other.pick(hashed("a"), range(3), 0) for _ in range(3)) == [0, 1, 2]  # by queues alone
    room = weighted(prefix=0.0, queue=0.0)
    picks = [room.pick(hashed("a", blocks), range(3), 0) for blocks in (50, 20, 10, 5)]
    assert len(set(picks[:3])) == 3
    assert picks[3] == picks[2]  # where most KV is free


def test_equal_scores_fall_to_any():
    picks = {weighted(seed=seed).pick(hashed("a"), range(3), 0) for seed in range(20)}
    assert picks == {0, 1, 2}


def turns(count=6):
    builder = TraceBuilder("turns")
    for turn in range(count):
        grows = Grown(200 + 40 * turn) if turn else None
        builder.add("", arrival_s=5.0 * turn, prompt_tokens=240 + 40 * turn, output_tokens=4, session_id="s", content=grows)
        builder.add("", arrival_s=5.0 * turn + 2, prompt_tokens=1400, output_tokens=4)
    return builder.build()


def test_a_router_that_sees_caches_knows_what_was_evicted():
    """Each turn of the session is followed by a long prompt. One that fills the replica's cache evicts the session: the router that
    remembers goes on sending the session there, the one that sees caches does not.
    """
    found = {}
    for view in ("sent", "cache"):
        engines = [SteppedEngine(VllmScheduler(EngineConfig(num_gpu_blocks=100)), AffinePrice()) for _ in range(2)]
        router = make_router("prefix-affinity", 2, 16, 10_000, {"view": view})
        found[view] = simulate(TraceSource(turns(), 16), engines, router=router).requests
    seen = found["cache"]
    session = np.asarray(seen["prompt_tokens"]) < 1400
    assert (seen["cached_tokens"][session] >= found["sent"]["cached_tokens"][session]).all()
    forgetful = make_router("prefix-affinity", 2, 16, 10_000, {"remembers": 1})
    forgetful.pick(hashed("a"), range(2), 0)
    assert forgetful._blocks.known(hashed("a").prompt_hashes) == [0, 0]  # the last block alone is no prefix


def test_a_word_of_bits_says_which_replicas_hold_a_block():
    shared, config = SimpleNamespace(distinct=1, blocks=1), EngineConfig(num_gpu_blocks=10)
    assert [covers_router("prefix-affinity", {}, replicas, config, shared) for replicas in (64, 65)] == [True, False]


class Last(RoundRobin):
    """The last one that is up, or another that is asked for."""

    decision = "last"

    def __init__(self, replicas, block_size, capacity, *, place=None):
        super().__init__(replicas)
        self._asked = place

    def pick(self, request, up, now):
        return up[-1] if self._asked is None else self._asked


def test_a_class_of_ones_own_is_a_router_by_its_path():
    router = make_router(f"{__name__}.Last", 3, 16, 10)
    engines = [SteppedEngine(VllmScheduler(EngineConfig(num_gpu_blocks=200)), AffinePrice()) for _ in range(3)]
    record = simulate(TraceSource(trace_of([(0.1 * i, 20, 3) for i in range(5)]), 16), engines, router=router)
    assert set(record.requests["replica"].tolist()) == {2}
    for place in (7, -1):
        lost = make_router(f"{__name__}.Last", 3, 16, 10, {"place": place})
        with pytest.raises(SimctlError, match=rf"the router picked replica {place}, and those up are \[0, 1, 2\]"):
            simulate(TraceSource(trace_of([(0.0, 20, 3)]), 16), engines, router=lost)


@pytest.mark.parametrize("name", ["os.path", "collections.Counter.x", "no.such"])
def test_a_path_to_something_else_is_refused(name):
    with pytest.raises(UsageError, match="cannot be made"):
        make_router(name, 3, 16, 10)
    with pytest.raises(UsageError, match="lacks dispatch_s, decision, pick"):
        make_router(f"{__name__}.Nothing", 3, 16, 10)


class Nothing:
    def __init__(self, *given):
        pass
