"""Step-time calibration as a report: rates, prior against posterior, and errors on cells that the fit did not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.sampling import Diagnostics
from calibrate.steps.fit import Posterior, StepFit
from calibrate.steps.grid_cells import Grid
from calibrate.steps.held_out import HeldOut, Scores, folds_of, held_out, scores_of
from calibrate.steps.iterations import KINDS, StepCells
from calibrate.steps.microbenchmarks import Microbenchmark, learn, with_microbenchmarks
from calibrate.steps.random_rates import prior_draws
from sim.cost.rates import UNITS

Array = NDArray[np.float64]
PRIOR_LED = 0.5  # of the prior's width is left
WORST_BAR = 0.06  # the worst held-out error aimed at: no model can promise it for a cell whose own repeats scatter by more


@dataclass(frozen=True, slots=True)
class RateRow:
    """One rate: 5 %, median and 95 % before and after; `learnt` is False where no cell shows it."""

    name: str
    unit: str
    prior: tuple[float, float, float]
    posterior: tuple[float, float, float]
    learnt: bool

    @property
    def width(self) -> float:
        """Width of the posterior's interval over the prior's, both of the logarithm."""
        after, before = (np.log(each[2] / each[0]) for each in (self.posterior, self.prior))
        return float(after / before)

    @property
    def prior_led(self) -> bool:
        """Whether the prior says at least half of what is known of it."""
        return self.width > PRIOR_LED


@dataclass(frozen=True, slots=True)
class HeldOutRow:
    """Errors on held-out cells: which folds, which part of them, the scores."""

    folds: str
    part: str
    scores: Scores


@dataclass(frozen=True, slots=True)
class CellError:
    """One held-out cell: how far its prediction is off, and the standard error of its measurement (fractions)."""

    model: str
    cell: str
    run: str
    error: float
    noise: float


@dataclass(frozen=True)
class Calibration:
    """A finished calibration."""

    fit: StepFit
    posterior: Posterior
    rates: list[RateRow]
    held_out: list[HeldOutRow]
    cell_errors: list[CellError]  # held out by cell, worst first
    microbenchmarks: list[Microbenchmark]

    @property
    def diagnostics(self) -> Diagnostics:
        return self.posterior.diagnostics

    @property
    def noise_floor(self) -> tuple[float, float, int]:
        """Of the cells' own repeats: median and 90 % of the standard error of a cell (fraction), and cells above WORST_BAR."""
        own = self.fit.cells.repeat_sd
        return float(np.median(own)), float(np.quantile(own, 0.9)), int((own > WORST_BAR).sum())

    @property
    def sigma(self) -> dict[str, float]:
        """Median model error (fraction) by kind of iteration that was learnt from."""
        each = dict(zip(KINDS, np.median(self.posterior.sigma, axis=0).tolist(), strict=True))
        return {kind: size for kind, size in each.items() if (self.fit.cells.kind == kind).any()}


def calibrate(fit: StepFit, folds: int, seed: int, microbenchmarks: Mapping[str, StepCells] | None = None) -> Calibration:
    """Sample, take the rates of microbenchmarks, and predict held-out cells: in `folds` folds of cells and, with two or more of them,
    leaving each model, each run and each machine out.
    """
    cells = fit.cells
    ways = [(way, held_out(cells, fit.priors, way.labels, fit.host_sd, seed, way.judged)) for way in folds_of(cells, folds, seed)]
    learnt = [learn(kind, timed, fit.priors, seed) for kind, timed in (microbenchmarks or {}).items()]
    posterior = with_microbenchmarks(fit.posterior(), learnt)
    return Calibration(
        fit,
        posterior,
        rate_rows(fit, posterior),
        [HeldOutRow(way.name, part, scores) for way, each in ways for part, scores in scores_of(way, cells, each)],
        cell_errors(cells, ways[0][1]) if ways else [],
        learnt,
    )


def rate_rows(fit: StepFit, posterior: Posterior) -> list[RateRow]:
    """Prior against posterior of every rate."""
    before = prior_draws(fit.priors, 4000, np.random.default_rng([fit.settings.seed, 3]))

    def three(values: Array) -> tuple[float, float, float]:
        low, mid, high = np.quantile(values, [0.05, 0.5, 0.95])
        return float(low), float(mid), float(high)

    return [
        RateRow(name, unit, three(getattr(before, name)), three(getattr(posterior.rates, name)), name in posterior.learnt)
        for name, unit in UNITS.items()
    ]


def cell_errors(cells: StepCells, held: HeldOut) -> list[CellError]:
    """Held-out cells, worst first."""
    each = zip(cells.model, cells.cell, cells.run, held.median_s / cells.step_s - 1, cells.repeat_sd, strict=True)
    rows = [CellError(str(model), str(cell), str(run), float(error), float(noise)) for model, cell, run, error, noise in each]
    return sorted(rows, key=lambda row: -abs(row.error))


def describe(grids: Sequence[Grid]) -> str:
    """One line on what was learnt from."""
    engines = ", ".join(sorted({g.engine for g in grids}))
    models = ", ".join(sorted({str(m) for g in grids for m in np.unique(g.cells.model)}))
    return f"posterior for {grids[0].gpu.name} from {sum(len(g.cells) for g in grids)} measured cells ({engines}; {models})"
