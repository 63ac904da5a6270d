"""Replicas are added after their cold start and drained when little is wanted for a while; what they cost is counted."""

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from sim.cluster.autoscale import Autoscaler, Scaling
from sim.cluster.pools import Pool
from sim.cluster.replica import SteppedEngine
from sim.cluster.router import make_router
from sim.cluster.simulation import simulate_pools
from sim.engine.config import EngineConfig
from sim.engine.registry import make_scheduler
from sim.errors import SimctlError, UsageError
from sim.ticks import to_ticks
from sim.workload.sources import TraceSource
from tests.runs import AffinePrice, trace_of

CONFIG = EngineConfig(num_gpu_blocks=64, max_num_seqs=2, max_num_batched_tokens=64, max_model_len=512)


def engine():
    return SteppedEngine(make_scheduler(CONFIG), AffinePrice())


def run(calls, **scaling):
    pool = Pool([engine() for _ in range(4)], make_router("least-requests", 4, 16, 64), later=3, spare=engine)
    given = [Scaling(**({"period_s": 1.0, "cold_start_s": 5.0, "down_after_s": 20.0} | scaling))] if scaling else []
    return simulate_pools(TraceSource(trace_of(calls), 16), [pool], scaling=given)


BUSY = [(0.1 * i, 20, 30) for i in range(600)]  # for a minute, more than one replica serves
QUIET = [(60.0 + 4 * i, 20, 5) for i in range(40)]


def test_a_busy_minute_brings_replicas_and_a_quiet_one_sends_them_away():
    record = run(BUSY + QUIET, target=3.0)
    arrival_s, replica, paid_s = record.requests["arrival_s"], record.requests["replica"], record.paid_s
    assert set(replica[arrival_s < 5.9]) == {0}  # a look at 1 s, and the cold start
    assert set(replica[(arrival_s > 20) & (arrival_s < 60)]) >= {0, 1}
    assert set(replica[arrival_s > 150]) == {0}
    assert paid_s[0] == pytest.approx(record.requests["finish_s"].max(), abs=1e-6)
    assert 50 < paid_s[1] < 100 > paid_s[3]
    assert not np.isnan(record.requests["finish_s"]).any()


def test_the_fixed_fleet_waits_longer_and_the_goal_on_ttft_is_a_signal_too():
    fixed, by_ttft = run(BUSY), run(BUSY, signal="ttft", target=0.5)
    waits = [np.percentile(each.requests["first_token_s"] - each.requests["arrival_s"], 90) for each in (fixed, by_ttft)]
    assert waits[1] < waits[0] / 3
    assert fixed.paid_s[1:] == [0.0, 0.0, 0.0]


def test_never_more_than_there_are_or_fewer_than_the_least():
    record = run(BUSY, signal="prompts", target=1e-3, least=2)
    assert min(record.paid_s) > 0
    idle = run(QUIET, target=100.0, least=2)
    assert idle.paid_s[1] > 0 == idle.paid_s[2]


def test_what_an_autoscaler_cannot_be():
    with pytest.raises(UsageError, match="signal is requests, prompts, ttft, not 'cpu'"):
        Scaling(signal="cpu")
    with pytest.raises(UsageError, match="target and a period above 0"):
        Scaling(period_s=0.0)


def test_a_period_in_which_time_stands_still_is_refused():
    with pytest.raises(UsageError, match=r"at least 0\.001 s"):
        Scaling(period_s=1e-16)


def test_what_lies_more_looks_away_than_anyone_waits_ends_in_a_line():
    with pytest.raises(SimctlError, match=r"nothing happens in 100,000 looks of an autoscaler, one every 1 s"):
        run([(0.0, 20, 5), (1e7, 20, 5)], target=3.0)
    assert not np.isnan(run([(0.0, 20, 5), (5e4, 20, 5)], target=3.0).requests["finish_s"]).any()


def test_the_signal_of_first_tokens_is_their_90th_percentile_of_a_period():
    pool = SimpleNamespace(ttfts=deque([(0, 99.0), *((to_ticks(1.5), float(i)) for i in range(11))]))
    scaler = SimpleNamespace(_fleet=SimpleNamespace(pools=[pool]), _clock=SimpleNamespace(now=to_ticks(2.0)))
    assert Autoscaler._load(scaler, Scaling(signal="ttft", period_s=1.0, target=0.5)) == 9.0
