"""A ramp is seen before the SLO breaks, a steady load is not warned of, and a dead server is told."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sim.slo import parse_slo
from sim.twin.curve import FIGURES, LatencyCurve
from sim.twin.forecast import SAFE, forecast, trend_of
from sim.twin.level import Level
from sim.twin.prometheus import Histogram, Snapshot
from sim.twin.twin import SILENT_AFTER, Twin

CAPACITY = 30.0
LIMIT_MS = 500.0


def queue_curve(prompt: float = 512.0, output: float = 128.0, cached_share: float = 0.0) -> LatencyCurve:
    """Latencies that grow as a queue's do, 1/(1 - load)."""
    rates = np.linspace(0.5, 0.95 * CAPACITY, 12)
    grown = 1.0 / (1.0 - rates / CAPACITY)
    base = {"ttft": 40.0, "tpot": 8.0, "e2el": 1000.0}
    factor = {"mean": 1.0, "std": 0.3, "median": 0.9, "p90": 1.4, "p95": 1.6, "p99": 2.2}
    figures = {name: base[name.split("_")[1]] * factor[name.split("_")[0]] * grown for name in FIGURES}
    decoding = rates * figures["mean_e2el_ms"] / 1e3
    return LatencyCurve(prompt, output, rates, figures, CAPACITY, decoding, {s: figures[f"{s}_tpot_ms"] for s in ("mean", "median")})


def counts(rates: np.ndarray, seconds: float, rng: np.random.Generator) -> tuple[list[float], list[float], list[float]]:
    ends = np.cumsum(np.full(len(rates), seconds))
    return ends.tolist(), [seconds] * len(rates), rng.poisson(rates * seconds).astype(float).tolist()


def known(slowness: float = 1.0) -> Level:
    level = Level.unknown()
    for _ in range(20):
        level = level.learn(slowness * 10.0, 10.0, 0.06)
    return level


CONDITIONS = parse_slo([f"ttft:p95<{LIMIT_MS:g}ms"], {})


def test_intervals_of_the_time_to_the_break_hold_the_truth() -> None:
    rates = np.linspace(6.0, 15.0, 40)  # ten minutes of fifteen seconds: 0.9 requests/s a minute
    breaks_at = CAPACITY * (1 - 1.6 * 40.0 / LIMIT_MS)  # requests/s
    truth_s, held, seeds = (breaks_at - rates[-1]) / (0.9 / 60.0), 0, 60
    for seed in range(seeds):
        trend = trend_of(*counts(rates, 15.0, np.random.default_rng(seed)))
        found = forecast(trend, queue_curve(), [known()], [known()], CONDITIONS, 1800.0)
        assert found.chance > 0.7
        assert found.between_s is not None
        assert found.add_replicas is not None
        assert found.add_replicas >= 1
        held += found.between_s[0] <= truth_s <= found.between_s[1]
    assert held >= 0.8 * seeds


@pytest.mark.parametrize("seed", range(10))
def test_a_steady_load_is_not_warned_of(seed: int) -> None:
    trend = trend_of(*counts(np.full(60, 10.0), 15.0, np.random.default_rng(seed)))
    found = forecast(trend, queue_curve(), [known()], [known()], CONDITIONS, 600.0)
    assert found.chance <= SAFE
    assert found.add_replicas == 0


def test_a_slower_server_breaks_earlier() -> None:
    trend = trend_of(*counts(np.linspace(6.0, 15.0, 40), 15.0, np.random.default_rng(0)))
    one, other = (forecast(trend, queue_curve(), [known(s)], [known()], CONDITIONS, 1800.0) for s in (1.0, 1.5))
    assert one.after_s is not None
    assert other.after_s is not None
    assert other.after_s < one.after_s


def snapshot(at_s: float, requests: float, tpot_s: float = 0.0125) -> Snapshot:
    """A server that has finished so many requests since it started, all alike."""

    def all_in(bounds: tuple[float, ...], value: float) -> Histogram:
        return Histogram(bounds, tuple(requests if value <= b else 0.0 for b in bounds), requests * value)

    histograms = {
        "ttft_s": all_in((0.01, 0.1, 1.0, math.inf), 0.06),
        "tpot_s": all_in((0.01, 0.025, 0.05, math.inf), tpot_s),
        "e2el_s": all_in((1.0, 10.0, math.inf), 1.5),
    }
    return Snapshot(
        at_s, "vllm", 15.0, 0.0, 0.1, {"prompt_tokens": 512 * requests, "output_tokens": 128 * requests, "finished": requests}, histograms
    )


def test_a_server_that_stops_answering_is_told_once_and_again_when_it_is_back() -> None:
    twin = Twin(["http://a", "http://b"], queue_curve, CONDITIONS)
    told: list[list[str]] = []
    for turn in range(12):
        b = "connection refused" if 4 <= turn < 9 else snapshot(15.0 * turn, 150.0 * turn)
        told.append(list(twin.observe(15.0 * turn, [snapshot(15.0 * turn, 150.0 * turn), b]).alerts))
    assert told[4 + SILENT_AFTER - 1] == ["http://b: silent (connection refused)"]
    assert told[9] == ["http://b: answers again"]
    assert not any(each for turn, each in enumerate(told) if turn not in (4 + SILENT_AFTER - 1, 9))


def test_a_server_that_becomes_slower_leaves_its_interval() -> None:
    twin = Twin(["http://a"], queue_curve, CONDITIONS)
    told = [twin.observe(15.0 * turn, [snapshot(15.0 * turn, 150.0 * turn)]).alerts for turn in range(20)]
    before = snapshot(15.0 * 19, 150.0 * 19)
    for turn in range(20, 23):
        found, more = snapshot(15.0 * turn, 150.0 * turn), 150.0 * (turn - 19)
        tpot = before.histograms["tpot_s"]
        slow = Histogram(tpot.bounds, (*tpot.counts[:2], *(c + more for c in tpot.counts[2:])), tpot.total_s + more * 0.045)
        told.append(twin.observe(15.0 * turn, [replace(found, histograms={**found.histograms, "tpot_s": slow})]).alerts)
    assert not any(told[:21])  # the first slow window may be chance
    assert "outside its predicted interval" in told[21][0]
