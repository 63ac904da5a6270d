"""The race finds what brute force finds: every count of every choice, each to its end, and the cheapest of those that certainly do."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.planning.race import RANKED, search
from sim.results.chance import chance_of
from tests.planning.synthetic import MOST, TTFT, choices, trials

RISING = st.lists(st.floats(0.0, 1.0), min_size=MOST, max_size=MOST).map(sorted)
CHOICES = st.lists(st.tuples(RISING, st.integers(1, 20)), min_size=1, max_size=5)


def brute_force(offered, run):
    """The least cost of a count that certainly holds; None where none does."""
    found = []
    for i, (_, price) in enumerate(offered):
        for count in range(1, MOST + 1):
            if chance_of(lambda trial, i=i, n=count: run(i, n, [trial])[0].met, RANKED).certain:
                found.append(count * price)
                break
    return min(found, default=None)


@settings(max_examples=30)
@given(CHOICES, st.integers(0, 1000))
def test_the_cost_is_the_same(offered, seed):
    run = trials([chances for chances, _ in offered], seed)
    plan, _ = search(choices(price for _, price in offered), TTFT, run, MOST)
    assert (plan.winner and plan.cost(plan.winner)) == brute_force(offered, run)
