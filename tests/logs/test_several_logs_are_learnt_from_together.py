"""Logs of one server laid end to end: each is replayed by itself, and no group of requests is of two of them."""

import numpy as np

from calibrate.logs.learn import grouping
from calibrate.logs.requests import PAUSE_S, ServedLog, joined
from tests.logs.made_logs import made, rates_at

LOADS = [made(rates_at({}), seed=seed, count=60, rates_per_s=(rate,)) for seed, rate in ((0, 2.0), (1, 8.0))]
LOGS = [ServedLog(each, np.ones(60, dtype=bool), np.full(60, np.nan), "made", ("a note",)) for each in LOADS]


def test_requests_of_the_second_come_after_the_first_has_ended():
    both = joined(LOGS)
    assert both.loads == tuple(LOADS)
    assert both.notes == ("a note",)
    assert both.experiment.arrival_s[60] >= (LOADS[0].arrival_s + LOADS[0].e2el_s).max() + PAUSE_S
    np.testing.assert_array_equal(both.experiment.ttft_s, np.concatenate([each.ttft_s for each in LOADS]))


def test_no_group_is_of_two_loads():
    weights, _ = grouping(joined(LOGS))
    first, second = (weights[:, part].any(axis=1) for part in (slice(0, 60), slice(60, None)))
    assert (first ^ second).all()
    assert first.any()
    assert second.any()


def test_one_log_stays_as_it_is():
    assert joined(LOGS[:1]) is LOGS[0]
