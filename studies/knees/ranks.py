"""Spearman rank correlation with ties, its bootstrap interval, and factor errors."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from sim.errors import UsageError

Array = NDArray[np.float64]


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman correlation of two samples of equal length; ties get their mean rank; NaN when a sample is constant."""
    a, b = _pair(x, y)
    return float(_correlation(rankdata(a), rankdata(b)))


def spearman_bootstrap(x: ArrayLike, y: ArrayLike, rng: np.random.Generator, resamples: int = 10_000) -> tuple[float, float]:
    """95 % percentile interval of Spearman over pairs drawn with replacement; resamples that are constant are left out."""
    a, b = _pair(x, y)
    rows = rng.integers(0, a.size, size=(resamples, a.size))
    values = _correlation(rankdata(a[rows], axis=-1), rankdata(b[rows], axis=-1))
    values = values[np.isfinite(values)]
    if values.size < resamples / 2:
        return float("nan"), float("nan")
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def factor_errors(predicted: ArrayLike, observed: ArrayLike) -> Array:
    """max(p/o, o/p) of positive numbers: 1 is exact, 2 is off by a factor of two either way."""
    p, o = _pair(predicted, observed)
    if (p <= 0).any() or (o <= 0).any():
        raise UsageError("factor errors need positive numbers")
    errors: Array = np.exp(np.abs(np.log(p / o)))
    return errors


def _pair(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if a.ndim != 1 or a.shape != b.shape or a.size < 1:
        raise UsageError(f"two samples of equal length are needed, got shapes {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise UsageError("samples must be finite (leave censored cells out, or give them a rank on purpose)")
    return a, b


def _correlation(a: Array, b: Array) -> Array:
    a = a - a.mean(axis=-1, keepdims=True)
    b = b - b.mean(axis=-1, keepdims=True)
    scale = np.sqrt((a**2).sum(axis=-1) * (b**2).sum(axis=-1))
    value: Array = np.divide((a * b).sum(axis=-1), scale, out=np.full(np.shape(scale), np.nan), where=scale > 0)
    return value
