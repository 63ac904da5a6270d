"""What two runs of one grid differ by: another start of the engine, on another machine of the same kind, on another occasion.

A grid's own repeats are taken within a second of each other, on one host. They say nothing of what the next machine will do, which is
what somebody who asks about a GPU will have. Two runs of the same cells do: the median log ratio is what a run has in common.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    """Standard deviation of the logarithm of what a run has in common; 0 without a repeat. A difference of two runs has twice a run's
    variance.
    """
    shifts = [float(np.median(log_ratios(*pair))) for pair in (repeated_grids() if pairs is None else pairs)]
    return float(np.sqrt(np.mean(np.square(shifts)) / 2)) if shifts else 0.0
