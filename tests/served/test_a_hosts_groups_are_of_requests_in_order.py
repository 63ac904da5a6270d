"""A host is fitted to means of requests in order of sending, no fewer than LEAST of them together, of those that have the time at all."""

import numpy as np
import pytest

from calibrate.served.host_fit import LEAST, PER_GROUP, _groups
from calibrate.served.runs import Experiment


def load(count, answers):
    """So many requests, a token every 10 ms, answers of so many tokens."""
    ones = np.ones(count)
    return Experiment("a", "open", np.arange(float(count)), np.full(count, 8), answers, ones, ones + 0.01 * (answers - 1))


@pytest.mark.parametrize("count", [LEAST, LEAST + 1, 2 * PER_GROUP])
def test_groups_are_equal_shares_in_order(count):
    weights, metric = _groups(load(count, np.full(count, 4)))
    groups = max(count // PER_GROUP, 1)
    assert metric.tolist() == [0] * groups + [1] * groups
    assert weights.sum(axis=1) == pytest.approx(1.0)
    assert [np.flatnonzero(row).tolist() for row in weights[:groups]] == [part.tolist() for part in np.array_split(range(count), groups)]


def test_fewer_than_the_least_say_nothing():
    answers = np.where(np.arange(LEAST) < LEAST - 1, 4, 1)  # one has no time between tokens
    weights, metric = _groups(load(LEAST, answers))
    assert metric.tolist() == [0]
    assert weights.shape == (1, LEAST)
    assert _groups(load(LEAST - 1, np.full(LEAST - 1, 4)))[0].shape == (0, LEAST - 1)
