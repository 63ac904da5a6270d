"""Of many loads a check takes a few: the calmest, the busiest, and others between them, in that order."""

from types import SimpleNamespace

import numpy as np

from calibrate.served.check import MOST_LOADS, _chosen


def load(tokens_per_s):
    """Two requests of half the tokens each, in a second."""
    half = np.full(2, tokens_per_s / 2)
    return SimpleNamespace(name=str(tokens_per_s), output_tokens=half, arrival_s=np.zeros(2), e2el_s=np.ones(2), ttft_s=np.ones(2))


def test_few_are_all_taken():
    assert [each.name for each in _chosen([load(30), load(10)])] == ["10", "30"]


def test_of_many_the_ends_and_what_lies_evenly_between():
    count = 2 * MOST_LOADS - 1  # every other one, then
    busy = [10 * (place + 1) for place in range(count)]
    assert [each.name for each in _chosen([load(each) for each in reversed(busy)])] == [str(each) for each in busy[::2]]
