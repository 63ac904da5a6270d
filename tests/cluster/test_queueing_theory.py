"""The event loop where queueing theory knows the answer: M/D/1 waits, and Little's law from the iteration log."""

import math

import numpy as np
import pytest
from hypothesis import given, settings

from sim.engine.config import EngineConfig
from sim.workload.arrivals import arrival_times
from tests.runs import AffinePrice, calls, configs, run, trace_of

REPLICATIONS = 12
T_999 = 4.437  # Student's t, 11 degrees of freedom, two-sided 99.9 %


def replicate(one_run):
    """(mean, half-width of the 99.9 % interval) of a figure over independent runs."""
    values = [one_run(np.random.default_rng(seed)) for seed in range(REPLICATIONS)]
    return np.mean(values), T_999 * np.std(values, ddof=1) / math.sqrt(REPLICATIONS)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_m_d_1_wait(load):
    service_s, count = 0.02, 1500
    config = EngineConfig(num_gpu_blocks=64, max_num_seqs=1, max_num_batched_tokens=4, enable_prefix_caching=False)

    def mean_wait(rng):
        times = arrival_times(count, load / service_s, 1.0, rng)
        record, _ = run(trace_of([(t, 1, 1) for t in times]), config, AffinePrice(service_s, 0.0))
        return (record.requests["scheduled_s"] - record.requests["arrival_s"])[count // 10 :].mean()

    mean, half = replicate(mean_wait)
    expected = load * service_s / (2 * (1 - load))
    assert abs(mean - expected) < half
    assert half < 0.4 * expected


@given(calls, configs)
@settings(max_examples=60)
def test_littles_law_from_the_event_log(requests, config):
    record, _ = run(trace_of(requests), config)
    log, columns = record.iterations, record.requests
    # number in system as each decision found it, for as long as its iteration took
    seen = ((log["running"] + log["waiting"]) * log["duration_s"]).sum()
    # plus those that came during an iteration, until the decision that found them
    starts = log["start_s"]
    found = starts[np.searchsorted(starts, columns["arrival_s"])]
    unseen = (found - columns["arrival_s"]).sum()
    assert seen + unseen == pytest.approx((columns["finish_s"] - columns["arrival_s"]).sum(), rel=1e-9)
