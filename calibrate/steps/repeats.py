"""What two runs of one grid differ by: another start of the engine, on another machine of the same kind, on another occasion.

A grid's own repeats are taken on one host, within a second of each other or, in several visits, within minutes. They say nothing of what
the next machine will do, which is what somebody who asks about a GPU will have. Several runs of the same cells do: the median log ratio is
what a run has in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from calibrate.sources import repeated_grids
from calibrate.steps.engine_grid import Grid

Array = NDArray[np.float64]


def log_ratios(first: Grid, again: Grid) -> Array:
    """log(again / first) of every cell that both ran, [cell]."""
    times = dict(zip(first.cells.cell.tolist(), first.cells.step_s.tolist(), strict=True))
    both = [(s, times[c]) for c, s in zip(again.cells.cell.tolist(), again.cells.step_s.tolist(), strict=True) if c in times]
    return np.log([s / t for s, t in both])


def run_sd(pairs: Sequence[tuple[Grid, Grid]] | None = None) -> float:
    """Standard deviation of the logarithm of what a run has in common; 0 without a repeat. Pairs of one first grid are runs of one model:
    their variance is pooled over models, each with one degree of freedom less than it has runs.
    """
    return _packaged_run_sd() if pairs is None else _pooled_sd(pairs)


@cache
def _packaged_run_sd() -> float:
    return _pooled_sd(repeated_grids())  # reads a dozen files, and one calibration asks three times


def _pooled_sd(pairs: Sequence[tuple[Grid, Grid]]) -> float:
    runs: dict[str, list[float]] = {}
    for first, again in pairs:
        runs.setdefault(first.source, [0.0]).append(float(np.median(log_ratios(first, again))))
    free = sum(len(shifts) - 1 for shifts in runs.values())
    squares = sum(float(np.var(shifts)) * len(shifts) for shifts in runs.values())
    return float(np.sqrt(squares / free)) if free else 0.0
