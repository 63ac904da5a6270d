"""What a step-time calibration says: the rates, prior against posterior, and its errors on cells it did not see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate import backend
from calibrate.beside import begun
from calibrate.sampling import Diagnostics, quiet
from calibrate.steps.alone import Alone, with_alone
from calibrate.steps.cells import KINDS, StepCells, unmeasured
from calibrate.steps.engine_grid import Grid
from calibrate.steps.fit import HeldOut, Posterior, Scores, StepFit, cell_folds, held_out
from calibrate.steps.machines import machines_of
from calibrate.steps.rates import prior_draws
from calibrate.steps.together import CellError, Together, between_runs, cell_errors, together
from sim.rates import UNITS

Array = NDArray[np.float64]
WORST_BAR = 0.06  # the worst held-out error aimed at: no model can promise it for a cell whose own repeats scatter by more


@dataclass(frozen=True, slots=True)
class RateRow:
    """One rate: 5 %, median and 95 % before and after; `learnt` is False where no cell shows it."""

    name: str
    unit: str
    prior: tuple[float, float, float]
    posterior: tuple[float, float, float]
    learnt: bool


@dataclass(frozen=True, slots=True)
class HeldOutRow:
    """Errors on held-out cells: which folds, which part of them, the scores."""

    folds: str
    part: str
    scores: Scores


@dataclass(frozen=True)
class Calibration:
    """A finished calibration."""

    fit: StepFit
    posterior: Posterior
    rates: list[RateRow]
    held_out: list[HeldOutRow]
    elpd_loo: float
    bad_pareto_k: int
    alone: tuple[Alone, ...] = ()
    cell_errors: tuple[CellError, ...] = ()  # held out by cell, the runs of each together; worst first
    together: tuple[Together, ...] = ()
    between_runs: float = float("nan")  # how far runs of a cell lie apart, over what their noise says

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


def calibrate(
    fit: StepFit, folds: int, seed: int, alone: Sequence[Callable[[], Alone]] = (), beside: Executor | None = None
) -> Calibration:
    """Fit, take the rates that were learnt `alone`, and predict held-out cells: in `folds` folds of cells and, with two or more of them,
    leaving each model, each run and each machine out; in the process `beside` this one, where there is one.
    """
    cells = fit.cells
    ways = _ways(cells, folds, seed) if folds >= 2 else []
    predicted = [begun(beside, held_out, cells, fit.priors, way.labels, fit.host_sd, seed, judged=way.judged) for way in ways]
    posterior = fit.posterior()
    loo = _loo(fit, posterior)
    found = [each() for each in alone]
    posterior = with_alone(posterior, found)
    held = [each() for each in predicted]
    errors = cell_errors(cells, held[0].median_s) if held else []
    return Calibration(
        fit,
        posterior,
        rate_rows(fit, posterior),
        [row for way, each in zip(ways, held, strict=True) for row in _rows(way, cells, each)],
        float(loo.elpd_loo),
        int((loo.pareto_k > 0.7).sum()),
        tuple(found),
        tuple(errors),
        tuple(together(errors, WORST_BAR, np.random.default_rng([seed, 4]))) if errors else (),
        between_runs(cells, held[0].median_s) if held else float("nan"),
    )


@dataclass(frozen=True, slots=True)
class _Way:
    """A way of holding cells out: the fold of each cell [n], and the parts [n] that are scored apart."""

    name: str
    labels: NDArray[np.str_]
    parts: NDArray[np.str_]
    judged: StepCells | None = None  # where what is left out is known less well than what it is predicted from


def _ways(cells: StepCells, folds: int, seed: int) -> list[_Way]:
    """By cell first, then those that the cells allow."""
    machines = _machines(cells)
    models, runs = len(np.unique(cells.model)), len(np.unique(cells.run))
    ways = [_Way(f"{folds}-fold by cell", cell_folds(cells, folds, np.random.default_rng(seed)), cells.kind)]
    if models > 1:
        # of a model that nobody has seen nobody has measured the products either
        ways.append(_Way("leave one model out", cells.model, cells.model, unmeasured(cells)))
    if runs > models:  # else every model is its run
        ways.append(_Way("leave one run out", cells.run, cells.run))
    if 1 < len(np.unique(machines)) < runs:
        ways.append(_Way("leave one machine out", machines, machines))
    return ways


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


def describe(grids: Sequence[Grid]) -> str:
    """One line on what was learnt from."""
    engines = ", ".join(sorted({g.engine for g in grids}))
    models = ", ".join(sorted({str(m) for g in grids for m in np.unique(g.cells.model)}))
    return f"posterior for {grids[0].gpu.name} from {sum(len(g.cells) for g in grids)} measured cells ({engines}; {models})"


def _machines(cells: StepCells) -> NDArray[np.str_]:
    """The machine of each cell [n], a run's own where it is not known."""
    runs = sorted(set(cells.run.tolist()))
    known = dict(zip(runs, machines_of(cells, runs), strict=True))
    return np.array([known[run] for run in cells.run.tolist()])


def _rows(way: _Way, cells: StepCells, held: HeldOut) -> list[HeldOutRow]:
    """Scores of all cells, and of each part of them (kinds in their own order)."""
    found = [k for k in KINDS if (way.parts == k).any()] or np.unique(way.parts).tolist()
    each = (HeldOutRow(way.name, part, held.scores(cells, way.parts == part)) for part in found)
    return [HeldOutRow(way.name, "all", held.scores(cells)), *each]


def _loo(fit: StepFit, posterior: Posterior) -> Any:
    az = backend.arviz()
    size = posterior.idata.posterior.sizes
    values = fit.log_likelihood(posterior).reshape(size["chain"], size["draw"], -1)
    import xarray as xr

    posterior.idata.add_groups(log_likelihood=xr.Dataset({"log_step_s": (("chain", "draw", "cell"), values)}))
    with quiet():  # arviz warns about influential cells; they are counted and printed instead
        return az.loo(posterior.idata, pointwise=True)
