"""The chance that something holds, found by trials, with its Monte-Carlo error; as many trials as it takes to say on which side of a
certainty it lies.

Two intervals are cut with each other. One is a confidence sequence: it holds the chance at every number of trials at once, so one may look
after each and stop when it says enough (Robbins 1970). Somebody bets on the next trial as if the chance were Beta-distributed (PRIOR); a
chance is outside once betting against it would have won 20 times the stake, which happens for the true one in at most one sequence of
twenty (Ville's inequality).

The other knows that trials are a systematic sample of the rates' draws (sim.study.strata): in order of their draws they hold up to a place
and miss beyond, and what is not known is that place. Its error is that of successive differences (Wolter 1985), FLIPS of them at least.
Of 4,000 sequences of independent trials at a chance of 0.95, looked at up to ENOUGH, both together called 2 % wrongly.

Where the first two trials miss by more than their errors the chance is below TWICE: at TWICE, that happens once in 280.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Held = NDArray[np.bool_]

STAGES = (4, 20, 40, 60, 80, 100, 140, 200, 280, 400, 560, 800, 1130, 1600)  # trials after which one looks: 100 that all hold are enough
ENOUGH = 200  # trials of a load that lasts: counts that these do not tell apart are one answer with a margin
CERTAINTY = 0.95
ERROR = 0.05
FITTED = 10  # trials from which on their scatter is parted
SHIFTS = 2.0  # standard errors of the mean that an interval allows for
TWICE = 0.94
PRIOR = (9.5, 0.5)  # ten trials' worth around CERTAINTY, where it is hardest to tell
ERRORS, FLIPS = 3.0, 3  # standard errors of a systematic sample, and neighbours among its trials that differ


@dataclass(frozen=True, slots=True)
class Chance:
    """`met` of `trials` held; the chance lies in `low`..`high`. `certain`: at least CERTAINTY, below it (False), or undecided (None)."""

    met: int
    trials: int
    low: float = 0.0
    high: float = 1.0

    @property
    def value(self) -> float:
        """Share of the trials that held."""
        return self.met / self.trials

    @property
    def certain(self) -> bool | None:
        """Whether the chance is at least CERTAINTY; None where the trials leave that open."""
        return True if self.low > CERTAINTY else False if self.high < CERTAINTY else None

    def __str__(self) -> str:
        """ "0.98 (0.96-1.00 by 400 trials)"."""
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f} by {self.trials} trials)"


def ruled_out(chance: float, met: int, trials: int) -> bool:
    """Whether betting against this chance has won enough to leave it out."""
    missed, (a, b) = trials - met, PRIOR
    won = math.lgamma(met + a) + math.lgamma(missed + b) - math.lgamma(trials + a + b)
    won += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return won + math.log(ERROR) > met * math.log(chance) + missed * math.log1p(-chance)


def _edge(outside: float, met: int, trials: int) -> float:
    """The end of the confidence sequence on the side of `outside`, 0 or 1."""
    inside = met / trials
    if inside == outside:
        return outside
    for _ in range(30):
        mid = 0.5 * (outside + inside)
        if ruled_out(mid, met, trials):
            outside = mid
        else:
            inside = mid
    return outside


def _ends(held: Held) -> tuple[float, float]:
    """The least and the most that the chance may be by trials that `held`, in the order in which they were drawn."""
    n, met = len(held), int(held.sum())
    row = held[np.argsort(radical_inverse(np.arange(1, n + 1), 2))]
    half = (1.0 + ERRORS * math.sqrt(max(int((row[1:] != row[:-1]).sum()), FLIPS) / 2)) / n
    return max(_edge(0.0, met, n), met / n - half), min(_edge(1.0, met, n), met / n + half)


def radical_inverse(whole: NDArray[np.int64], base: int) -> Floats:
    """Whole numbers mirrored at the point: 6, 110 in base 2, becomes 0.011. Their order is that of a van der Corput sequence."""
    found, digit = np.zeros(len(whole)), 1.0
    while whole.any():
        digit /= base
        whole, rest = np.divmod(whole, base)
        found += digit * rest
    return found


def chance_of_held(held: Sequence[bool] | Held) -> Chance:
    """The chance by trials of which it is known whether they `held`, in order."""
    known = np.asarray(held, dtype=bool)
    return Chance(int(known.sum()), len(known), *_ends(known))


def chance_of_figures(used: Floats, error: Floats, out: Held) -> Chance:
    """The chance that all limits hold at a draw of the rates, of trials that saw each a share `used` of each limit, [trial, limit], with a
    standard `error`; `out` trials do not hold whatever they used.

    The trials scatter by their rates and by their errors. Their logarithms are drawn together around the mean until their variance is what
    the rates alone explain (constrained empirical Bayes: Louis 1984), and what their errors do to that mean is carried into the interval.
    """
    beyond = out | (used - 2.0 * error > 1.0).any(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs, noise = np.log(used), np.where(used > 0.0, error / used, 0.0)
    met = [~out, ~out, ~out]
    for log, own in zip(logs.T, noise.T, strict=True):
        known = np.isfinite(log) & ~out
        if int(known.sum()) < FITTED or not own[known].any():
            met = [each & (log <= 0.0) for each in met]
            continue
        mean, variance, by_errors = float(log[known].mean()), float(log[known].var(ddof=1)), float((own[known] ** 2).mean())
        by_rates = max(variance - by_errors, 0.0)
        drawn = np.where(known, mean + np.sqrt(by_rates / np.maximum(by_rates + own**2, 1e-300)) * (log - mean), log)
        off = SHIFTS * math.sqrt((variance - by_rates) / int(known.sum()))  # that of the rates is in the interval of the trials
        met = [each & (drawn + shift <= 0.0) for each, shift in zip(met, (0.0, off, -off), strict=True)]
    most = TWICE if len(out) > 1 and beyond[:2].all() else 1.0
    return Chance(int(met[0].sum()), len(out), _ends(met[1])[0], min(_ends(met[2])[1], most))


def chance_of(holds: Callable[[int], bool], stages: tuple[int, ...] = STAGES) -> Chance:
    """The chance that `holds`, called with 0, 1, 2, ...: trials of the draws of the rates in their order."""
    held: list[bool] = []
    for stage in stages:
        held += [holds(trial) for trial in range(len(held), stage)]
        if (found := chance_of_held(held)).certain is not None:
            break
    return found
