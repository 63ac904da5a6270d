"""A middle of few scattered values, and how far off it may be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.quantiles import MEDIAN_SE

Array = NDArray[np.float64]
QUARTILES_TELL = 0.37  # of what all values would tell of their spread, quartiles do: degrees of freedom per value


def middle(values: Array) -> tuple[float, float]:
    """(median, error) of values [n], n from 3 up: median +- 1.645 errors holds what they scatter around nine times in ten.

    The error is the standard error by the quartiles, which a few outliers do not move. Quartiles of few values lie closer together than
    those of many (Blom's positions say by how much), and tell little of the spread: a Student-t of so few degrees of freedom.
    """
    from scipy import stats

    n = len(values)
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    place = 1 + 0.25 * (n - 1)  # of the lower quartile, among the ordered
    span = -2 * stats.norm.ppf((place - 0.375) / (n + 0.25))
    return float(median), float(heavier(QUARTILES_TELL * n) * MEDIAN_SE * (high - low) / span / np.sqrt(n))


def heavier(freedom: float) -> float:
    """By how much a Student-t's 90 % interval of so many degrees of freedom is wider than a normal's."""
    from scipy import stats

    return float(stats.t.ppf(0.95, freedom) / stats.norm.ppf(0.95))
