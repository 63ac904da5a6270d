"""What an API server takes per token that it sends is found again in the token times of streams that an iteration serves."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.served.send_times import LEAST, MOST, token_time_s
from studies.sbc.hosts import streams

OTHERWISE = 6e-5


def sent(streaming: int, token_s: float, iterations: int = LEAST, step_s: float = 0.01):
    """Streams whose tokens of an iteration come one after another, in an order of their own each time."""
    places = np.array([np.random.default_rng(i).permutation(streaming) for i in range(iterations)]).T
    times = tuple(step_s * np.arange(1, iterations + 1) + token_s * own for own in places)
    return replace(streams(np.full(3, 0.02)), token_s=times)


@pytest.mark.parametrize("streaming", [4, MOST])
def test_tokens_of_an_iteration_lie_that_far_apart(streaming):
    assert token_time_s([sent(streaming, 45e-6)], OTHERWISE) == pytest.approx(45e-6, rel=1e-6)


def test_few_streams_few_iterations_or_no_token_times_say_nothing():
    told = sent(3, 45e-6), sent(8, 45e-6, LEAST - 1), replace(sent(8, 45e-6), token_s=None)
    assert [token_time_s([each], OTHERWISE) for each in told] == [OTHERWISE] * 3
