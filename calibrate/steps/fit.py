"""Fit the step-time model to cells, judge it on cells it did not see, and say what was learnt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.sampling import Compiled, Diagnostics, Settings, diagnose
from calibrate.steps.cells import StepCells, check_enough
from calibrate.steps.model import free_rates, log_likelihood, log_price, model_data, predictive, step_model
from calibrate.steps.rates import prior_draws
from sim.errors import UsageError
from sim.priors import Prior
from sim.rates import UNITS, Rates

Array = NDArray[np.float64]
TARGET_ACCEPT = {"one model": 0.95, "several": 0.9}
MIXED_UNITS = 100.0  # no engine is this far off its bill at one cell and not at others; milliseconds among seconds are


@dataclass(frozen=True)
class Posterior:
    """Draws of all rates and of the model error, with what they were learnt from. Rates not in `learnt` are their prior's."""

    rates: Rates  # arrays [draw]
    sigma: Array  # [draw, kind]
    learnt: tuple[str, ...]
    diagnostics: Diagnostics
    idata: Any

    @property
    def draws(self) -> int:
        return int(self.sigma.shape[0])


@dataclass(frozen=True, slots=True)
class Scores:
    """Signed relative errors of the median prediction on n cells, and how many fell in their 90 % interval."""

    n: int
    median: float
    p90: float
    worst: float
    bias: float
    coverage: float


@dataclass(frozen=True)
class HeldOut:
    """Every cell predicted by a fit that did not see its fold: seconds [n] (5 %, median, 95 %), and the fold's label."""

    low_s: Array
    median_s: Array
    high_s: Array
    fold: NDArray[np.str_]

    def scores(self, cells: StepCells, keep: NDArray[np.bool_] | None = None) -> Scores:
        """Scores over the cells, or over those that `keep` selects."""
        return score(cells.step_s, self.low_s, self.median_s, self.high_s, keep)


def score(observed: Array, low: Array, median: Array, high: Array, keep: NDArray[np.bool_] | None = None) -> Scores:
    """Scores of interval predictions [n] against observations [n]."""
    pick = np.ones(observed.size, dtype=bool) if keep is None else keep
    error = median[pick] / observed[pick] - 1
    size = np.abs(error)
    inside = (low[pick] <= observed[pick]) & (observed[pick] <= high[pick])
    return Scores(
        n=int(pick.sum()),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        worst=float(size.max()),
        bias=float(np.median(error)),
        coverage=float(inside.mean()),
    )


class StepFit:
    """The step-time model of one set of cells, compiled once for the fit and all its folds."""

    def __init__(self, cells: StepCells, priors: Mapping[str, Prior], settings: Settings) -> None:
        check_enough(cells)
        check_one_unit(cells, priors)
        self.cells, self.priors, self.settings = cells, priors, settings
        self.free = tuple(free_rates(cells))
        self._compiled = Compiled(step_model(cells, priors), settings.sampler)

    def posterior(self, cells: StepCells | None = None, settings: Settings | None = None) -> Posterior:
        """Sample on all cells, or on the part of them given."""
        how = settings or self.settings
        idata = self._compiled.sample(how, None if cells is None else model_data(cells))
        rates, sigma = self._draws(idata, how.seed)
        return Posterior(rates, sigma, self.free, diagnose(idata), idata)

    def _draws(self, idata: Any, seed: int) -> tuple[Rates, Array]:
        """Rates, arrays [draw], those not sampled from their priors; model error [draw, kind]."""
        stacked = idata.posterior.stack(sample=("chain", "draw"))
        values = _columns(prior_draws(self.priors, stacked.sizes["sample"], np.random.default_rng([seed, 1])))
        values |= {name: np.asarray(stacked[name].values, dtype=float) for name in self.free}
        return Rates(**values), np.asarray(stacked["sigma"].transpose("sample", "kind").values, dtype=float)

    def held_out(self, folds: NDArray[np.str_], settings: Settings | None = None, run_sd: float = 0.0) -> HeldOut:
        """Predict each fold (labels [n]) from a fit to the others. `run_sd` (of a logarithm) is what a fold's cells have in common where it
        is a run of its own; intervals allow for it.
        """
        how = settings or self.settings
        low, median, high = (np.full(len(self.cells), np.nan) for _ in range(3))
        labels = np.unique(folds)
        fits = self._compiled.sample_each(how, [model_data(self.cells.take(folds != label)) for label in labels])
        for i, (label, idata) in enumerate(zip(labels, fits, strict=True)):
            out = folds == label
            rates, sigma = self._draws(idata, how.seed)
            common = np.exp(run_sd * np.random.default_rng([how.seed, 4, i]).standard_normal(len(sigma)))
            low[out], median[out], high[out] = intervals(
                self.cells.take(out), rates, sigma, np.random.default_rng([how.seed, 2, i]), common
            )
        return HeldOut(low, median, high, folds)

    def log_likelihood(self, posterior: Posterior) -> Array:
        """Pointwise log density [draw, n] of the cells, for LOO."""
        return log_likelihood(self.cells, log_price(self.cells, posterior.rates), posterior.sigma)


def target_accept(cells: StepCells) -> float:
    """Acceptance that the sampler aims at. Cells of one model hardly tell fixed cost from bandwidth, and long steps diverge there;
    cells of several do not, and long steps take half as many gradients to as large an effective sample.
    """
    return TARGET_ACCEPT["one model" if len(np.unique(cells.model)) == 1 else "several"]


def check_one_unit(cells: StepCells, priors: Mapping[str, Prior]) -> None:
    """Raise UsageError when some times are so far from the rest, against the formula at the priors' medians, that units must be mixed."""
    medians = Rates(**{name: priors[name].median for name in UNITS})
    factor = np.log(cells.step_s) - log_price(cells, medians)[0]
    order = np.argsort(factor)
    gaps = np.diff(factor[order])
    widest = int(np.argmax(gaps))
    if gaps[widest] > np.log(MIXED_UNITS):
        apart = order[widest + 1 :] if 2 * (widest + 1) >= len(order) else order[: widest + 1]
        times = "longer" if apart[0] == order[widest + 1] else "shorter"
        raise UsageError(
            f"cell '{cells.cell[apart[0]]}' of {cells.model[apart[0]]} ({cells.step_s[apart[0]]:g} s) and {len(apart) - 1} others are "
            f"{np.exp(gaps[widest]):.0f} times {times} than the rest, each against its bill: mixed units?"
        )


def intervals(
    cells: StepCells, rates: Rates, sigma: Array, rng: np.random.Generator, common: Array | None = None
) -> tuple[Array, Array, Array]:
    """5 %, 50 % and 95 % of what a new measurement of each cell would read, seconds [n]; `common` [draw] is a factor of all of its run."""
    draws = predictive(cells, log_price(cells, rates), sigma, rng)
    if common is not None:
        draws = draws * common[:, None]
    low, median, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
    return low, median, high


def cell_folds(cells: StepCells, count: int, rng: np.random.Generator) -> NDArray[np.str_]:
    """`count` folds of distinct cells (repeats of a cell stay together), as even as can be, at random."""
    names, index = np.unique(np.char.add(np.char.add(cells.model, "|"), cells.cell), return_inverse=True)
    fold = rng.permutation(np.arange(names.size) % count)
    return np.array([f"fold {f + 1}" for f in fold])[index]


def _columns(rates: Rates) -> dict[str, Any]:
    return {name: getattr(rates, name) for name in UNITS}
