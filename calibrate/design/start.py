"""Draws of a GPU's rates before its cells are measured, and the noise of a measured cell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrate.steps.iterations import StepCells
from calibrate.steps.random_rates import calibration_priors, prior_draws
from calibrate.steps.step_model import NU, SIGMA_MEDIAN, log_times
from sim.cost.rates import UNITS, RateDraws, Rates
from sim.rates.posterior import best_posterior, rates_from_file, read_posterior
from sim.specs.gpu import GpuSpec
from sim.specs.precision import Precision

Array = NDArray[np.float64]
DRAWS = 800


@dataclass(frozen=True)
class Start:
    """Draws [draw] of the rates, model error by kind [kind] (a fraction), and where both come from."""

    rates: Rates
    sigma: Array
    basis: str

    def point(self) -> Rates:
        """The medians, as floats."""
        return Rates(**{name: float(np.median(getattr(self.rates, name))) for name in UNITS})

    def log_times(self, cells: StepCells) -> Array:
        """log seconds [draw, cell]."""
        return log_times(cells, self.rates)

    def noise_var(self, cells: StepCells) -> Array:
        """Variance [cell] of a cell's log reading given the rates: a normal one that tells as much as the Student-t of the fit."""
        return np.asarray(self.sigma[cells.kind_index()] ** 2 * (NU + 3) / (NU + 1))

    def log_rates(self) -> Array:
        """[draw, rate], only rates that vary."""
        columns = np.column_stack([np.log(np.asarray(getattr(self.rates, name), dtype=float)) for name in UNITS])
        return np.asarray(columns[:, columns.std(axis=0) > 0])


def start_from(gpu: GpuSpec, precision: Precision, path: Path | None, datasheet: bool, seed: int) -> Start:
    """The posterior file given, else the GPU's packaged one, else the population of GPUs'; or what a calibration starts from."""
    source = path or (None if datasheet else best_posterior(gpu))
    if source is None:
        rates = prior_draws(calibration_priors(gpu, precision), DRAWS, np.random.default_rng([seed, 60]))
        return Start(rates, SIGMA_MEDIAN, f"the datasheet of {gpu.name} and weak host costs")
    found: RateDraws = rates_from_file(source, gpu, precision, draws=DRAWS, seed=seed, model_error=False)
    sigma = read_posterior(source).variables["sigma"]
    return Start(found.draws, np.asarray(np.sqrt(np.mean(sigma**2, axis=0))), found.summary)
