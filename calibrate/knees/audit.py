"""Where the two-term curve does not fit, and why: low-fit curves with their (overlapping) categories."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from calibrate.knees.curves import Cell, Curve
from sim.knee import eta

LOW_FIT_R2 = 0.70
LONG_CONTEXT_TOKENS = 32_000
LONG_DECODE_TOKENS = 512
# A rise smaller than this between two rungs is repeat noise, not a rebound.
MIN_REBOUND = 0.02


@dataclass(frozen=True, slots=True)
class Fit:
    """Least-squares ratio of one curve in eta, with R2 (1 - residual / total; NaN for a curve that does not vary)."""

    r: float
    r2: float


@dataclass(frozen=True, slots=True)
class Finding:
    """One low-fit curve."""

    curve: Curve
    fit: Fit
    recovers: bool
    categories: tuple[str, ...]


def fit_ratio(curve: Curve) -> Fit:
    """Free ratio r of eta(B) = (1 + r)/(1 + B r), by least squares over log r in [1e-6, 1e3]."""
    batches, etas = np.array(curve.batches), np.array(curve.etas)

    def loss(log_r: float) -> float:
        return float(((eta(batches, np.exp(log_r)) - etas) ** 2).sum())

    # the loss has flat ends: bracket the minimum on a grid before the bounded search
    grid = np.linspace(np.log(1e-6), np.log(1e3), 60)
    best = int(np.argmin([loss(g) for g in grid]))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    total = float(((etas - etas.mean()) ** 2).sum())
    return Fit(float(np.exp(found.x)), 1 - float(found.fun) / total if total > 0 else float("nan"))


def rebounds(etas: Sequence[float], least: float = MIN_REBOUND) -> bool:
    """Whether efficiency rises by more than `least` from one rung to the next."""
    return any(after - before > least for before, after in itertools.pairwise(etas))


def recovers(curve: Curve, tau: float = 0.65) -> bool:
    """Whether the curve is at or above tau again after its first crossing."""
    knee = curve.discrete_knee(tau)
    return not knee.censored and any(e >= tau for b, e in zip(curve.batches, curve.etas, strict=True) if b > knee.batch)


def categories(cell: Cell, last_batch: float, fit_r2: float, non_monotone: bool) -> tuple[str, ...]:
    """Overlapping labels of a low-fit curve, as published; where none applies it is `smooth_low_fit`."""
    labels = {
        "non_monotone": non_monotone,
        "tested_beyond_vram_ceiling": last_batch > cell.n_max(),
        "long_context_long_decode_tail": cell.context_tokens >= LONG_CONTEXT_TOKENS and cell.decode_tokens >= LONG_DECODE_TOKENS,
        "negative_r2": fit_r2 < 0,
    }
    found = tuple(name for name, holds in labels.items() if holds)
    return found or ("smooth_low_fit",)


def audit(curves: Iterable[Curve], tau: float = 0.65, threshold: float = LOW_FIT_R2) -> list[Finding]:
    """Curves whose free-ratio fit has R2 below the threshold."""
    findings = []
    for curve in curves:
        fit = fit_ratio(curve)
        if fit.r2 < threshold:
            labels = categories(curve.cell, curve.batches[-1], fit.r2, rebounds(curve.etas))
            findings.append(Finding(curve, fit, recovers(curve, tau), labels))
    return findings


def axis_counts(cells: Iterable[Cell]) -> Counter[str]:
    """How often each GPU, decode length, precision, context and model occurs: where failures concentrate."""
    counts: Counter[str] = Counter()
    for cell in cells:
        counts.update(
            (
                f"gpu={cell.gpu}",
                f"decode={cell.decode_tokens}",
                f"precision={cell.weight_dtype}",
                f"context={cell.context_tokens}",
                f"model={cell.model}",
            )
        )
    return counts
