"""The chance that something holds, found by trials, with its Monte-Carlo error; as many trials as it takes to say on which side of a
certainty it lies.

The interval is a confidence sequence: it holds the chance at every number of trials at once, so one may look after each and stop when it
says enough (Robbins 1970). Somebody bets on the next trial as if the chance were Beta-distributed (PRIOR); a chance is outside once betting
against it would have won 20 times the stake, which happens for the true one in at most one sequence of twenty (Ville's inequality).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

STAGES = (4, 20, 40, 60, 80, 100, 140, 200, 280, 400, 560, 800, 1130, 1600)  # trials after which one looks: 100 that all hold are enough
CERTAINTY = 0.95
ERROR = 0.05
PRIOR = (9.5, 0.5)  # ten trials' worth around CERTAINTY, where it is hardest to tell


@dataclass(frozen=True, slots=True)
class Chance:
    """`met` of `trials` held; the chance lies in `low`..`high`. `certain`: at least CERTAINTY, below it (False), or not to be told."""

    met: int
    trials: int

    @property
    def value(self) -> float:
        """Share of the trials that held."""
        return self.met / self.trials

    @property
    def low(self) -> float:
        """The least that the chance may be."""
        return 0.0 if self.met == 0 else self._edge(0.0)

    @property
    def high(self) -> float:
        """The most that it may be."""
        return 1.0 if self.met == self.trials else self._edge(1.0)

    @property
    def certain(self) -> bool | None:
        """Whether the chance is at least CERTAINTY; None where the trials leave that open."""
        return self.value > CERTAINTY if self.trials and self._outside(CERTAINTY) else None

    def __str__(self) -> str:
        """ "0.98 (0.96-1.00 by 400 trials)"."""
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f} by {self.trials} trials)"

    def _outside(self, chance: float) -> bool:
        """Whether betting against this chance has won enough to leave it out."""
        missed, (a, b) = self.trials - self.met, PRIOR
        won = math.lgamma(self.met + a) + math.lgamma(missed + b) - math.lgamma(self.trials + a + b)
        won += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        return won + math.log(ERROR) > self.met * math.log(chance) + missed * math.log1p(-chance)

    def _edge(self, outside: float) -> float:
        inside = self.value
        for _ in range(30):
            middle = 0.5 * (outside + inside)
            if self._outside(middle):
                outside = middle
            else:
                inside = middle
        return outside


def chance_of(holds: Callable[[int], bool], stages: tuple[int, ...] = STAGES) -> Chance:
    """The chance that `holds`, called with 0, 1, 2, ...: trials that are independent of each other."""
    return chance_by(lambda begin, end: sum(holds(trial) for trial in range(begin, end)), stages)


def chance_by(met_of: Callable[[int, int], int], stages: tuple[int, ...] = STAGES) -> Chance:
    """The same where `met_of(begin, end)` says of how many of these trials it holds."""
    found = Chance(0, 0)
    for begin, end in zip((0, *stages), stages, strict=False):
        found = Chance(found.met + met_of(begin, end), end)
        if found.certain is not None:
            break
    return found
