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

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STAGES = (4, 20, 40, 60, 80, 100, 140, 200, 280, 400, 560, 800, 1130, 1600)  # trials after which one looks: 100 that all hold are enough
ENOUGH = 200  # trials of a load that lasts: counts that these do not tell apart are one answer with a margin
CERTAINTY = 0.95
ERROR = 0.05
FITTED = 10  # trials from which on their scatter is parted
SHIFTS = 2.0  # standard errors of the mean that an interval allows for
PRIOR = (9.5, 0.5)  # ten trials' worth around CERTAINTY, where it is hardest to tell


@dataclass(frozen=True, slots=True)
class Chance:
    """`met` of `trials` held; the chance lies in `low`..`high`. `certain`: at least CERTAINTY, below it (False), or undecided (None).

    Where the trials' own figures have errors, `fewest` and `most` are what held at the unfavourable and at the favourable end of those.
    """

    met: int
    trials: int
    fewest: int | None = None
    most: int | None = None

    @property
    def value(self) -> float:
        """Share of the trials that held."""
        return self.met / self.trials

    @property
    def low(self) -> float:
        """The least that the chance may be."""
        if self.fewest is not None:
            return Chance(self.fewest, self.trials).low
        return 0.0 if self.met == 0 else self._edge(0.0)

    @property
    def high(self) -> float:
        """The most that it may be."""
        if self.most is not None:
            return Chance(self.most, self.trials).high
        return 1.0 if self.met == self.trials else self._edge(1.0)

    @property
    def certain(self) -> bool | None:
        """Whether the chance is at least CERTAINTY; None where the trials leave that open."""
        if self.fewest is not None and self.most is not None:
            ends = Chance(self.fewest, self.trials).certain, Chance(self.most, self.trials).certain
            return ends[0] if ends[0] == ends[1] else None
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


def chance_of_figures(used: Floats, error: Floats, out: NDArray[np.bool_]) -> Chance:
    """The chance that all limits hold at a draw of the rates, of trials that saw each a share `used` of each limit, [trial, limit], with a
    standard `error`; `out` trials do not hold whatever they used.

    The trials scatter by their rates and by their errors. Their logarithms are drawn together around the mean until their variance is what
    the rates alone explain (constrained empirical Bayes: Louis 1984), and the error of that mean is carried into the interval.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs, noise = np.log(used), np.where(used > 0.0, error / used, 0.0)
    met = [~out, ~out, ~out]
    for log, own in zip(logs.T, noise.T, strict=True):
        known = np.isfinite(log) & ~out
        if int(known.sum()) < FITTED or not own[known].any():
            met = [each & (log <= 0.0) for each in met]
            continue
        mean, variance = float(log[known].mean()), float(log[known].var(ddof=1))
        by_rates = max(variance - float((own[known] ** 2).mean()), 0.0)
        drawn = np.where(known, mean + np.sqrt(by_rates / np.maximum(by_rates + own**2, 1e-300)) * (log - mean), log)
        off = SHIFTS * math.sqrt(variance / int(known.sum()))
        met = [each & (drawn + shift <= 0.0) for each, shift in zip(met, (0.0, off, -off), strict=True)]
    return Chance(*(int(n) for n in (met[0].sum(), len(out), met[1].sum(), met[2].sum())))


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
