"""Where in an iteration's tokens the last one of a finished request is: as a search from the front says, whatever the order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.interface import Outcome, Request
from sim.errors import SimctlError


def requests(count):
    return [Request(str(i), 0.0, 1, 1) for i in range(count)]


@given(st.integers(1, 40), st.data())
def test_places_are_those_of_a_search_from_the_front(count, data):
    sampled = requests(count)
    finished = data.draw(st.lists(st.sampled_from(sampled), unique_by=id))
    assert Outcome(sampled, finished).last_places() == [sampled.index(request) for request in finished]


def test_a_request_that_was_given_nothing_is_named():
    sampled, (other,) = requests(3), requests(1)
    with pytest.raises(SimctlError, match="finished request 0 in an iteration that gave it no token"):
        Outcome(sampled, [sampled[2], other]).last_places()
