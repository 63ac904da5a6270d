"""What replicates on one server differ by widens the intervals of latencies, in quadrature of logarithms, and nothing else."""

import math

import pytest

from sim.results.intervals import REPLICATES_SD, Z_90, between_replicates

WAY = Z_90 * REPLICATES_SD["ttft"]


def test_a_latency_without_an_interval_gets_that_of_replicates():
    assert between_replicates({"mean_ttft_ms": 100.0}, {})["mean_ttft_ms"] == pytest.approx((100 * math.exp(-WAY), 100 * math.exp(WAY)))


def test_ways_add_up_in_quadrature():
    low, high = between_replicates({"p99_ttft_ms": 100.0}, {"p99_ttft_ms": (50.0, 300.0)})["p99_ttft_ms"]
    assert low == pytest.approx(100 * math.exp(-math.hypot(math.log(2), WAY)))
    assert high == pytest.approx(100 * math.exp(math.hypot(math.log(3), WAY)))


def test_none_spreads_rates_and_latencies_of_nothing_stay():
    summary = {"std_ttft_ms": 5.0, "request_throughput": 4.0, "mean_ttft_ms": 0.0}
    assert between_replicates(summary, {}) == {}
    assert between_replicates(summary, {"request_throughput": (3.0, 5.0)}) == {"request_throughput": (3.0, 5.0)}
