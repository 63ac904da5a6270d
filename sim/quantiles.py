"""Medians, and quantiles of the distributions that intervals are drawn from, without what importing scipy and masked arrays costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# Standard error of a median over that of a mean, for normal samples.
MEDIAN_SE = 1.2533
NEWTON_STEPS = 60  # quadratic near the end; far out in the tails it first walks there


def median(values: Array) -> float:
    """np.median of finite values [n], to the last bit. That one imports numpy.ma, a tenth of a what-if."""
    low, high = (values.size - 1) // 2, values.size // 2
    parted = np.partition(values, (low, high))
    return float((parted[low] + parted[high]) / 2)


def quantiles(values: Array, shares: Sequence[float]) -> list[float]:
    """np.quantile of values [n] at shares in [0, 1], to the last bit and for the same reason."""
    places, last, found = [(values.size - 1) * share for share in shares], values.size - 1, []
    parted = np.partition(values, sorted({last, *map(int, places), *(min(int(place) + 1, last) for place in places)}))
    if np.isnan(parted[last]):
        return [float("nan")] * len(shares)
    for place in places:
        before, past = int(place), place - int(place)
        low, high = float(parted[before]), float(parted[min(before + 1, last)])
        found.append(low + (high - low) * past if past < 0.5 else high - (high - low) * (1 - past))
    return found


def normal_quantile(p: Array) -> Array:
    """Standard normal quantile of probabilities in (0, 1)."""
    from statistics import NormalDist

    inverse = NormalDist().inv_cdf
    return np.array([inverse(float(each)) for each in np.ravel(p)]).reshape(np.shape(p))


def t_95(freedom: int) -> float:
    """The 0.95 quantile of Student's t, by the first terms of its expansion around the normal (Abramowitz and Stegun 26.7.5): to 2 % from
    three degrees of freedom on.
    """
    z = 1.6448536
    first, second = (z**3 + z) / 4.0, (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0
    return z + first / freedom + second / freedom**2


def t5_quantile(p: Array) -> Array:
    """Quantile of Student's t with five degrees of freedom, whose distribution function is elementary, by Newton's method from the middle
    outwards: from there on the function is concave, so no step goes too far.
    """
    upper = 0.5 + np.abs(np.asarray(p, dtype=float) - 0.5)
    t = np.zeros(np.shape(upper))
    for _ in range(NEWTON_STEPS):
        before, t = t, t + (upper - _t5_cdf(t)) / _t5_density(t)
        if np.array_equal(before, t):
            break
    return np.asarray(np.sign(np.asarray(p) - 0.5) * t)


def _t5_cdf(t: Array) -> Array:
    s = 1.0 + t**2 / 5.0
    return np.asarray(0.5 + (t / (np.sqrt(5.0) * s) * (1.0 + 2.0 / (3.0 * s)) + np.arctan(t / np.sqrt(5.0))) / np.pi)


def _t5_density(t: Array) -> Array:
    return np.asarray(8.0 / (3.0 * np.pi * np.sqrt(5.0)) / (1.0 + t**2 / 5.0) ** 3)
