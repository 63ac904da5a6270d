"""The API server turns to all its requests by turns: alone each takes its time, together they all wait for one another."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.price.shapes import departures

WORK = 1000


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 3 * WORK)), min_size=1, max_size=40).map(sorted))
def test_it_is_work_conserving_and_keeps_the_order(jobs):
    arrivals, works = ([job[i] for job in jobs] for i in (0, 1))
    left = departures(arrivals, works)
    assert left == sorted(left)
    # the server is busy exactly as long as there is work: the last departure of a busy period is that of a first-come queue
    queue = 0
    for i, arrival in enumerate(arrivals):
        queue = max(queue, arrival) + works[i]
        assert left[i] >= arrival + works[i]
        alone_after = i + 1 == len(arrivals) or arrivals[i + 1] >= queue
        if alone_after:
            assert abs(left[i] - queue) <= len(arrivals)  # rounding up once per departure


def test_requests_sent_at_once_get_through_at_once():
    assert departures([7] * 5, [WORK] * 5) == [7 + 5 * WORK] * 5


def test_a_short_one_gets_through_with_the_long_ones_that_came_with_it_and_one_of_no_work_at_once():
    assert departures([0, 0, 0, 5], [WORK, 8 * WORK, WORK, 0]) == [10 * WORK] * 3 + [5]


def test_requests_apart_do_not_notice_one_another():
    arrivals = np.arange(10) * 1500
    assert departures(arrivals.tolist(), [WORK] * 10) == (arrivals + WORK).tolist()
