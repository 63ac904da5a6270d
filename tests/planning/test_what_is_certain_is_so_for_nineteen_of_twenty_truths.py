"""The stated probabilities of a plan are true: of 120 synthetic truths, most near 0.95, 5 % at most are called wrongly."""

import numpy as np

from sim.planning.race import search
from sim.results.chance import STAGES
from tests.planning.synthetic import TTFT, choices, trials

COUNTS = 5


def test_the_winner_has_the_chance_that_is_claimed():
    rng, wrong, found = np.random.default_rng(1), 0, 0
    for seed in range(120):
        chances = np.sort(np.clip(rng.normal(0.95, 0.03, COUNTS), 0, 1)).tolist()
        plan, _ = search(choices([1.0]), TTFT, trials([chances], seed), COUNTS, stages=STAGES)
        if plan.winner is not None:
            found += 1
            wrong += chances[plan.winner.replicas - 1] < 0.95
    assert found > 60
    assert wrong <= 0.05 * found
