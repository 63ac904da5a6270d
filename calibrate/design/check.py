"""A design put to the test on cells that were really measured: what each set of cells teaches, starting from the datasheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.sampling import Settings
from calibrate.steps.engine_grid import Grid
from calibrate.steps.fit import StepFit
from calibrate.steps.population import calibration_priors
from sim.rates import Rates


@dataclass(frozen=True)
class Taught:
    """Posterior draws [draw] of the rates from some of a grid's cells."""

    name: str
    rates: Rates
    cells: int


def taught_by(grid: Grid, sets: dict[str, Sequence[str]], seed: int) -> list[Taught]:
    """Posteriors from each named set of the grid's cell labels, by the sampler, one compiled model for all."""
    settings = Settings(draws=500, tune=700, chains=2, seed=seed)
    fit = StepFit(grid.cells, calibration_priors(grid.gpu, grid.precision), settings)
    out = []
    for name, labels in sets.items():
        keep: NDArray[np.bool_] = np.isin(grid.cells.cell, list(labels))
        out.append(Taught(name, fit.posterior(grid.cells.take(keep)).rates, int(keep.sum())))
    return out
