"""Choices whose chances are given, and trials of them under common random numbers."""

import numpy as np

from sim.planning.choices import Choice, Part
from sim.planning.trials import Trial
from sim.slo import parse_slo

MOST = 12
TTFT = parse_slo(["ttft:p99<1s"], {})
MET = Trial((0.5,))


def trials(chances, seed):
    """Trials of choices whose chance by count is given."""
    draws = np.random.default_rng(seed).random(1600)
    used = [[(1.0 + draws - chance).tolist() for chance in each] for each in chances]
    return lambda choice, count, wanted: [Trial((used[choice][count - 1][i],)) for i in wanted]


class Made(Choice):
    """A choice without a study."""

    routed = "in turn"


def choices(prices):
    """Choices of units of one GPU at these prices."""
    return [Made(str(i), None, (Part(1, float(price), 1),)) for i, price in enumerate(prices)]
