"""Requests of a log are averaged in groups of five and more of one load, short prompts apart from long ones where both are enough."""

from types import SimpleNamespace

import numpy as np
import pytest

from calibrate.logs.learn import LEAST_IN_GROUP, grouping
from sim.errors import SimctlError


def log(count, tokens=2):
    """So many answered requests of one load, prompts of 1 to `count` tokens."""
    experiment = SimpleNamespace(prompt_tokens=np.arange(1, count + 1), output_tokens=np.full(count, tokens))
    return SimpleNamespace(answered=np.ones(count, dtype=bool), experiment=experiment, loads=[SimpleNamespace(ttft_s=np.ones(count))])


@pytest.mark.parametrize(("count", "sizes"), [(5, [5]), (9, [9]), (10, [5, 5]), (20, [10, 10])])
def test_by_hand(count, sizes):
    assert LEAST_IN_GROUP == 5
    weights, metric = grouping(log(count))
    assert [int((row > 0).sum()) for row in weights] == 2 * sizes  # first tokens, then times per token
    assert weights.sum(axis=1) == pytest.approx(1.0)
    assert metric.tolist() == [0] * len(sizes) + [1] * len(sizes)


def test_four_are_too_few_and_answers_of_one_token_have_no_time_between():
    with pytest.raises(SimctlError, match="no group of requests is large enough"):
        grouping(log(4))
    assert grouping(log(10, tokens=1))[1].tolist() == [0, 0]
