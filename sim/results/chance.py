"""The chance that something holds, found by trials, with its Monte-Carlo error; as many trials as it takes to say on which side of a
certainty it lies.

Trials go on in stages (a group-sequential design). After each, the Clopper-Pearson interval of the chance is looked at; the error is
shared out over the looks (Bonferroni), so that all of them together are wrong once in twenty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

STAGES = (20, 100, 400, 1600)  # trials after which one looks: 100 that all hold are enough to be sure of 0.95
CERTAINTY = 0.95
ERROR = 0.05


@dataclass(frozen=True, slots=True)
class Chance:
    """`met` of `trials` held; the chance lies in `low`..`high`. `certain`: at least CERTAINTY, below it (False), or not to be told."""

    met: int
    trials: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """Share of the trials that held."""
        return self.met / self.trials

    @property
    def certain(self) -> bool | None:
        """Whether the chance is at least CERTAINTY; None where the trials leave that open."""
        return True if self.low >= CERTAINTY else False if self.high < CERTAINTY else None

    def __str__(self) -> str:
        """ "0.98 (0.96-1.00 by 400 trials)"."""
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f} by {self.trials} trials)"


def chance_of(holds: Callable[[int], bool], stages: tuple[int, ...] = STAGES) -> Chance:
    """The chance that `holds`, called with 0, 1, 2, ...: trials that are independent of each other."""
    return chance_by(lambda begin, end: sum(holds(trial) for trial in range(begin, end)), stages)


def chance_by(met_of: Callable[[int, int], int], stages: tuple[int, ...] = STAGES) -> Chance:
    """The same where `met_of(begin, end)` says of how many of these trials it holds."""
    met, found = 0, Chance(0, 1, 0.0, 1.0)
    for begin, end in zip((0, *stages), stages, strict=False):
        met += met_of(begin, end)
        found = Chance(met, end, *_interval(met, end, ERROR / len(stages)))
        if found.certain is not None:
            break
    return found


def _interval(met: int, trials: int, error: float) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share."""
    from scipy.special import betaincinv

    low = 0.0 if met == 0 else float(betaincinv(met, trials - met + 1, error / 2))
    high = 1.0 if met == trials else float(betaincinv(met + 1, trials - met, 1 - error / 2))
    return low, high
