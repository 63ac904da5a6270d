"""Medians with their spread: how every timing is summed up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def summarize(samples_s: Sequence[float], prefix: str) -> dict[str, float | int]:
    """`{prefix}_median`, `_p25`, `_p75` (same unit as the samples) and `_n`. NaN for no samples."""
    if not len(samples_s):
        return {f"{prefix}_median": float("nan"), f"{prefix}_p25": float("nan"), f"{prefix}_p75": float("nan"), f"{prefix}_n": 0}
    low, middle, high = np.quantile(np.asarray(samples_s, dtype=float), (0.25, 0.5, 0.75))
    return {
        f"{prefix}_median": float(middle),
        f"{prefix}_p25": float(low),
        f"{prefix}_p75": float(high),
        f"{prefix}_n": len(samples_s),
    }
