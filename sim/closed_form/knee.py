"""Batch knee: where per-request efficiency falls below a threshold.

The pure two-term step (weights once, KV per request) gives eta(B) = (1 + r) / (1 + B r) with r = KV bytes of a request
over weight bytes; its crossing of a threshold tau has a closed form. Measured curves are crossed on their own ladder,
linearly in log2(batch). A curve that never falls below tau has no knee: it is right-censored at its last batch, and no
number is made up for it.
Source: definitions in scenarios/data/reference/tr164/definitions.csv.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError


class Knee(NamedTuple):
    """A knee batch; when `censored`, the curve was still at or above tau at `batch` and the knee lies beyond it."""

    batch: float
    censored: bool


def eta(batch: Any, r: Any) -> Any:
    """Per-request efficiency t(1)/t(B) of the two-term step; `batch` and `r` are floats or arrays that broadcast."""
    return (1 + r) / (1 + batch * r)


def closed_form_knee(r: Any, tau: float = 0.65) -> Any:
    """Batch at which `eta(batch, r)` equals tau; `r` is a positive float or array. UsageError unless 0 < tau < 1."""
    return (1 + r - _checked(tau)) / (tau * r)


def discrete_knee(batches: Sequence[float], etas: Sequence[float], tau: float = 0.65) -> Knee:
    """First tested batch above 1 with efficiency below tau; censored at the last batch when there is none."""
    crossing = _first_crossing(batches, etas, tau)
    return Knee(float(batches[-1]), True) if crossing is None else Knee(float(batches[crossing]), False)


def continuous_knee(batches: Sequence[float], etas: Sequence[float], tau: float = 0.65) -> Knee:
    """First crossing of tau, linear in log2(batch) between the rungs around it; censored at the last batch when none.

    Raises UsageError when the ladder does not ascend from at least 1, has fewer than two rungs, starts below tau, or a
    value is not finite and positive.
    """
    crossing = _first_crossing(batches, etas, tau)
    if crossing is None:
        return Knee(float(batches[-1]), True)
    if crossing == 0 or etas[crossing - 1] < tau:  # only where the ladder does not start at batch 1
        raise UsageError(f"efficiency is below {tau} on the first rung ({batches[0]:g}): the knee is not bracketed")
    low, high = math.log2(batches[crossing - 1]), math.log2(batches[crossing])
    fraction = (etas[crossing - 1] - tau) / (etas[crossing - 1] - etas[crossing])
    return Knee(float(2 ** (low + fraction * (high - low))), False)


def continuous_knees(batches: Sequence[float], etas: NDArray[np.float64], tau: float = 0.65) -> NDArray[np.float64]:
    """`continuous_knee` of many curves [batch, curve] that start at batch 1; inf where a curve is censored."""
    _checked(tau)
    rungs = np.log2(np.asarray(batches, dtype=np.float64))
    below = etas < tau
    crossing = np.maximum(np.argmax(below, axis=0), 1)
    curve = np.arange(etas.shape[1])
    before, after = etas[crossing - 1, curve], etas[crossing, curve]
    crossed = below.any(axis=0)
    fraction = (before - tau) / np.where(crossed, before - after, 1.0)
    return np.where(crossed, 2 ** (rungs[crossing - 1] + fraction * (rungs[crossing] - rungs[crossing - 1])), np.inf)


def _checked(tau: float) -> float:
    if not 0 < tau < 1:
        raise UsageError(f"tau must lie between 0 and 1: {tau!r}")
    return tau


def _first_crossing(batches: Sequence[float], etas: Sequence[float], tau: float) -> int | None:
    _checked(tau)
    if len(batches) != len(etas) or len(batches) < 2:
        raise UsageError(f"a knee needs one efficiency per batch and two rungs: {len(batches)} batches, {len(etas)} values")
    if batches[0] < 1 or any(b <= a for a, b in itertools.pairwise(batches)):
        raise UsageError("the batches of a ladder must ascend from at least 1")
    if not all(math.isfinite(value) and value > 0 for value in etas):
        raise UsageError("efficiencies must be finite and positive")
    return next((i for i, batch in enumerate(batches) if batch > 1 and etas[i] < tau), None)
