"""Paired differences of two answers to the same arrivals and, where both have them, the same draws of the rates (common random numbers).

Of the run: mean of the differences by repeat, with Student's t (the paired-t interval of Law and Kelton). Of the rates: 5 to 95 %
of the differences by draw, or both answers' own draws as independent where they are not of the same rates. Both add in quadrature.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.cost.rates import UNITS
from sim.results.intervals import T_90

if TYPE_CHECKING:
    from sim.study.simulate import Run

Array = NDArray[np.float64]
EACH = 20  # repeats and draws that are kept
PAIRS = 1 + 2 * EACH  # identity of the draws, repeats, draws
NO_PAIRS = np.full(PAIRS, np.nan)
RATES_BITS = 48  # of a hash that a float holds exactly


def pairs_of(run: Run, name: str) -> list[float]:
    """[PAIRS]: which draws of the rates these are, the figure in each repeat (the run shown first), and at each draw; NaN where there are
    none.
    """
    mark, draws = hashlib.sha256(), run.draws.get(name, [])
    chosen = np.arange(len(draws))
    for rates, _ in run.study.sources:
        for each in (np.atleast_1d(getattr(rates.draws, unit)) for unit in UNITS):
            mark.update(each[chosen % len(each)].tobytes())
    same = int.from_bytes(mark.digest()[: RATES_BITS // 8], "big") if draws else math.nan
    return [float(same), *_kept(run.repeats.get(name, [])), *_kept(draws)]


def difference(one: Array, other: Array) -> tuple[float, float, float] | None:
    """(difference other - one, its 90 % interval's low and high) of two rows of `pairs_of`; None where nothing was repeated or drawn."""
    parts, gap = (slice(1, 1 + EACH), slice(1 + EACH, PAIRS)), np.asarray(other) - np.asarray(one)
    repeats, draws = (gap[part][np.isfinite(gap[part])] for part in parts)
    mean = level(gap)
    if math.isnan(mean):
        return None
    of_run = T_90[EACH - 1] * float(repeats.std(ddof=1)) / math.sqrt(len(repeats)) if len(repeats) > 1 else 0.0
    low, high = _reach(draws)
    if len(draws) > 1 and one[0] != other[0]:
        (a_low, a_high), (b_low, b_high) = (_reach(np.asarray(each)[parts[1]]) for each in (one, other))
        low, high = math.hypot(b_low, a_high), math.hypot(b_high, a_low)
    return mean, mean - math.hypot(of_run, low), mean + math.hypot(of_run, high)


def level(row: Array) -> float:
    """The mean of a row of `pairs_of` that `difference` compares: of the repeats, else of the draws; NaN where there is none."""
    for values in (np.asarray(row)[1 : 1 + EACH], np.asarray(row)[1 + EACH :]):
        if len(known := values[np.isfinite(values)]) > 1:
            return float(np.mean(known))
    return math.nan


def _kept(values: list[float]) -> list[float]:
    chosen = [values[i] for i in np.linspace(0, len(values) - 1, min(EACH, len(values))).round().astype(int)]
    return [*map(float, chosen), *(EACH - len(chosen)) * [math.nan]]


def _reach(values: Array) -> tuple[float, float]:
    """Distances of the 5 and 95 % points from the median; 0 of none."""
    if len(values) < 2:
        return 0.0, 0.0
    low, median, high = np.nanpercentile(values, (5.0, 50.0, 95.0))
    return float(median - low), float(high - median)
