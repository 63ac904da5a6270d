"""Held-out errors: cells, models, runs and machines predicted by fits that did not see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.steps.iterations import KINDS, StepCells, machines_of
from calibrate.steps.laplace import fitted
from calibrate.steps.step_model import log_times, predictive
from sim.cost.rates import Rates
from sim.rates.priors import Prior

Array = NDArray[np.float64]
Labels = NDArray[np.str_]
DRAWS = 1000


@dataclass(frozen=True, slots=True)
class Scores:
    """Relative errors of the median prediction on n cells, and the share of them in their 90 % interval."""

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
    fold: Labels

    def scores(self, cells: StepCells, keep: NDArray[np.bool_] | None = None) -> Scores:
        """Scores over the cells, or over those that `keep` selects."""
        return score(cells.step_s, self.low_s, self.median_s, self.high_s, keep)


@dataclass(frozen=True, slots=True)
class Folds:
    """A way of holding cells out: the fold of each cell [n], the parts [n] that are scored apart, and the cells as what is left out knows
    them.
    """

    name: str
    labels: Labels
    parts: Labels
    judged: StepCells


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


def folds_of(cells: StepCells, count: int, seed: int) -> Iterator[Folds]:
    """Folds of cells first; then, as far as there are several, each model, each run and each machine left out. None below two folds."""
    if count < 2:
        return
    runs = sorted(set(cells.run.tolist()))
    known = dict(zip(runs, machines_of(cells, runs), strict=True))
    machines = np.array([known[run] for run in cells.run.tolist()])
    models = len(np.unique(cells.model))
    yield Folds(f"{count}-fold by cell", cell_folds(cells, count, np.random.default_rng(seed)), cells.kind, cells)
    if models > 1:  # its GEMMs were measured without an engine, or not even they
        yield Folds("leave one model out", cells.model, cells.model, cells)
        if (cells.work != cells.roofline_work).any():
            yield Folds("leave one model out, its GEMMs not measured", cells.model, cells.model, cells.unmeasured())
    if len(runs) > models:  # else every model is its run
        yield Folds("leave one run out", cells.run, cells.run, cells)
    if 1 < len(np.unique(machines)) < len(runs):
        yield Folds("leave one machine out", machines, machines, cells)


def cell_folds(cells: StepCells, count: int, rng: np.random.Generator) -> Labels:
    """`count` folds of distinct cells (repeats of a cell stay together), as even as can be, at random."""
    names = np.char.add(np.char.add(cells.model, "|"), cells.cell)
    index = np.unique(names, return_inverse=True)[1]
    fold = rng.permutation(np.arange(index.max() + 1) % count)
    return np.array([f"fold {f + 1}" for f in fold])[index]


def held_out(
    cells: StepCells, priors: Mapping[str, Prior], folds: Labels, host_sd: float, seed: int, judged: StepCells | None = None
) -> HeldOut:
    """Predict each fold (labels [n]) from a fit to the others. Cells of a run that others are of are on its host; a run left out whole is
    on one that is known as far as other runs on its machine tell.
    """
    judged = cells if judged is None else judged
    runs = cells.run_names()
    machines = machines_of(cells, runs)
    low, median, high = (np.full(len(cells), np.nan) for _ in range(3))
    for i, label in enumerate(np.unique(folds)):
        out = folds == label
        fit = fitted(cells.take(~out), priors, host_sd, runs=runs, machines=machines)
        rng = np.random.default_rng([seed, 2, i])
        rates, known, sigma = fit.draws(DRAWS, rng)
        hosts = hosts_of(judged.take(out), runs, known, other_host_sd(host_sd, runs), rng)
        low[out], median[out], high[out] = intervals(judged.take(out), rates, sigma, rng, hosts)
    return HeldOut(low, median, high, folds)


def scores_of(folds: Folds, cells: StepCells, held: HeldOut) -> list[tuple[str, Scores]]:
    """(part, scores) of all cells, and of each part of them (kinds in their own order)."""
    parts = [k for k in KINDS if (folds.parts == k).any()] or np.unique(folds.parts).tolist()
    return [("all", held.scores(cells)), *((part, held.scores(cells, folds.parts == part)) for part in parts)]


def other_host_sd(host_sd: float, runs: Sequence[str]) -> float:
    """Log sd of another host's factor: of rates of a median host (of several `runs`), or of a single run's own host."""
    return host_sd if runs else host_sd * float(np.sqrt(2.0))


def hosts_of(cells: StepCells, runs: Sequence[str], known: Array, sd: float, rng: np.random.Generator) -> Array:
    """Factors [draw, n] of the hosts of cells: `known` [draw, run] of `runs`, log-normal of `sd` for each other run."""
    factors = {run: known[:, i] for i, run in enumerate(runs)}
    for run in np.unique(cells.run).tolist():
        if run not in factors:
            factors[run] = np.exp(sd * rng.standard_normal(len(known)))
    return np.stack([factors[run] for run in cells.run.tolist()], axis=1)


def intervals(
    cells: StepCells, rates: Rates, sigma: Array, rng: np.random.Generator, hosts: Array | None = None
) -> tuple[Array, Array, Array]:
    """5 %, 50 % and 95 % of a new measurement of each cell, seconds [n], on hosts of these factors ([draw, n])."""
    low, median, high = np.quantile(predictive(cells, log_times(cells, rates, hosts), sigma, rng), [0.05, 0.5, 0.95], axis=0)
    return low, median, high
