"""Fit the step-time model to cells, judge it on cells it did not see, and say what was learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.sampling import Compiled, Diagnostics, Settings, diagnose
from calibrate.steps.approximate import approximate, spread_of_hosts
from calibrate.steps.bend import Lay, run_index, run_names
from calibrate.steps.cells import StepCells, check_enough
from calibrate.steps.machines import machines_of
from calibrate.steps.model import free_rates, log_likelihood, log_price, model_data, predictive, step_model
from calibrate.steps.noise import with_hosts_of_visits
from calibrate.steps.rates import prior_draws
from sim.errors import UsageError
from sim.priors import Prior
from sim.rates import UNITS, Rates

Array = NDArray[np.float64]
HELD_OUT_DRAWS = 1000
MIXED_UNITS = 100.0  # no engine is this far off its bill at one cell and not at others; milliseconds among seconds are


@dataclass(frozen=True)
class Posterior:
    """Draws of all rates and of the model error, with what they were learnt from. Rates not in `learnt` are their prior's."""

    rates: Rates  # arrays [draw], of a middle host
    hosts: Array  # [draw, run]: factors of the hosts of several runs
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
    """The step-time model of one set of cells, compiled once, when it is first sampled. `host_sd` is what hosts differ by; learnt from the
    runs unless told.
    """

    def __init__(self, cells: StepCells, priors: Mapping[str, Prior], settings: Settings, host_sd: float | None = None) -> None:
        check_enough(cells)
        check_one_unit(cells, priors)
        self.cells, self.priors, self.settings = with_hosts_of_visits(cells, priors), priors, settings
        cells = self.cells
        self.free, self.runs = tuple(free_rates(cells)), tuple(run_names(cells))
        self.host_sd = spread_of_hosts(cells, priors) if host_sd is None else host_sd
        self._model = step_model(cells, priors, host_sd=self.host_sd, lay=self._lay(cells))

    @cached_property
    def _compiled(self) -> Compiled:
        return Compiled(self._model, self.settings.sampler)

    @property
    def other_host_sd(self) -> float:
        """What another host differs by from the one whose rates these are: of a single run's own both are unknown."""
        return other_host_sd(self.host_sd, self.runs)

    def posterior(self, cells: StepCells | None = None, settings: Settings | None = None) -> Posterior:
        """Sample on all cells, or on the part of them given."""
        how, data = settings or self.settings, None
        if cells is not None:
            data = model_data(cells, self.runs) | self._model.bend.straight(self._lay(cells))
        idata = self._compiled.sample(how, data)
        found = diagnose(idata)
        if found.failures() and how.anew:
            idata = self._compiled.sample(replace(how, draws=how.anew), data)
            found = diagnose(idata)
        stacked = idata.posterior.stack(sample=("chain", "draw"))
        values = _columns(prior_draws(self.priors, stacked.sizes["sample"], np.random.default_rng([how.seed, 1])))
        values |= {name: np.asarray(stacked[name].values, dtype=float) for name in self.free}
        hosts = stacked["host"].transpose("sample", "run").values if self.runs else np.ones((stacked.sizes["sample"], 0))
        sigma = np.asarray(stacked["sigma"].transpose("sample", "kind").values, dtype=float)
        return Posterior(Rates(**values), np.asarray(hosts, dtype=float), sigma, self.free, found, idata)

    def _lay(self, cells: StepCells) -> Lay:
        return approximate(cells, self.priors, self.host_sd, free=self.free, runs=self.runs).lay

    def log_likelihood(self, posterior: Posterior) -> Array:
        """Pointwise log density [draw, n] of the cells, for LOO."""
        hosts = posterior.hosts[:, run_index(self.cells, self.runs)] if self.runs else None
        return log_likelihood(self.cells, log_price(self.cells, posterior.rates, hosts), posterior.sigma)


def other_host_sd(host_sd: float, runs: Sequence[str]) -> float:
    """Log sd of another host's factor: of rates of a middle host (of several `runs`), or of a single run's own host."""
    return host_sd if runs else host_sd * float(np.sqrt(2.0))


def held_out(
    cells: StepCells,
    priors: Mapping[str, Prior],
    folds: NDArray[np.str_],
    host_sd: float,
    seed: int,
    draws: int = HELD_OUT_DRAWS,
    judged: StepCells | None = None,
) -> HeldOut:
    """Predict each fold (labels [n]) from an approximate fit (calibrate.steps.approximate) to the others. Cells of a run that others are of
    are on its host; a run left out whole is on one that is known as far as other runs on its machine tell. `judged` are the cells as
    what is left out knows them, where it knows less than a fit to them.
    """
    judged = cells if judged is None else judged
    runs = run_names(cells)
    machines = machines_of(cells, runs)
    low, median, high = (np.full(len(cells), np.nan) for _ in range(3))
    for i, label in enumerate(np.unique(folds)):
        out = folds == label
        fit = approximate(cells.take(~out), priors, host_sd, runs=runs, machines=machines)
        rng = np.random.default_rng([seed, 2, i])
        rates, known, sigma = fit.draws(draws, rng)
        hosts = hosts_of(judged.take(out), fit.runs, known, other_host_sd(host_sd, fit.runs), rng)
        low[out], median[out], high[out] = intervals(judged.take(out), rates, sigma, rng, hosts)
    return HeldOut(low, median, high, folds)


def hosts_of(cells: StepCells, runs: Sequence[str], known: Array, spread: float, rng: np.random.Generator) -> Array:
    """Factors [draw, n] of the hosts of cells: `known` [draw, run] of `runs`, log-normal of `spread` for each other run."""
    factors = {run: known[:, i] for i, run in enumerate(runs)}
    for run in np.unique(cells.run).tolist():
        if run not in factors:
            factors[run] = np.exp(spread * rng.standard_normal(len(known)))
    return np.stack([factors[run] for run in cells.run.tolist()], axis=1)


def check_one_unit(cells: StepCells, priors: Mapping[str, Prior]) -> None:
    """Raise UsageError when some times are so far from the rest, against the formula at the priors' medians, that units must be mixed, or
    all so much longer than it says that they are in another.
    """
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
    if (middle := float(np.median(factor))) > np.log(
        MIXED_UNITS
    ):  # shorter may be: alone, a link takes less than any iteration's fixed cost
        raise UsageError(
            f"step times are {np.exp(middle):.0f} times as long as the datasheet's usual rates give them (the middle one of {len(cells)} "
            "cells): wrong unit?"
        )


def intervals(
    cells: StepCells, rates: Rates, sigma: Array, rng: np.random.Generator, hosts: Array | None = None
) -> tuple[Array, Array, Array]:
    """5 %, 50 % and 95 % of what a new measurement of each cell would read, seconds [n], on hosts of these factors ([draw, n])."""
    low, median, high = np.quantile(predictive(cells, log_price(cells, rates, hosts), sigma, rng), [0.05, 0.5, 0.95], axis=0)
    return low, median, high


def cell_folds(cells: StepCells, count: int, rng: np.random.Generator) -> NDArray[np.str_]:
    """`count` folds of distinct cells (repeats of a cell stay together), as even as can be, at random."""
    index = cells.places()
    fold = rng.permutation(np.arange(index.max() + 1) % count)
    return np.array([f"fold {f + 1}" for f in fold])[index]


def _columns(rates: Rates) -> dict[str, Any]:
    return {name: getattr(rates, name) for name in UNITS}
