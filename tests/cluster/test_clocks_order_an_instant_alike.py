"""Events of an instant happen by rank, then by turn, then by age, on the heap and on SimPy."""

from itertools import permutations

import pytest

from sim.cluster.clock import Clock, SimpyClock

ASKED = [(0, 2), (1, 0), (1, 1), (2, 0), (2, 0)]  # rank, turn


@pytest.mark.parametrize("made", [Clock, SimpyClock])
def test_rank_before_turn_before_age(made):
    for order in permutations(range(len(ASKED))):
        clock, seen = made(), []
        for age, i in enumerate(order):
            clock.call(7, *ASKED[i], seen.append, (*ASKED[i], age))
        clock.run()
        assert seen == sorted(seen)
        assert (len(seen), clock.now) == (len(ASKED), 7)
