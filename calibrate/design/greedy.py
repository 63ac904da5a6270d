"""Choose cells to measure by what they are expected to tell about a decision, per second of measuring.

The decision's figures and the candidates' log step times are known as draws of the same rates. Where both are close to linear in the
log rates they are jointly Gaussian, and observing cell j with noise variance v leaves a figure f with

    var(f) - cov(f, log t_j)**2 / (var(log t_j) + v)

whatever the reading turns out to be, so a plan can be made before anything is measured. The information gained about a figure is half the
logarithm of the ratio of its variances, in nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError

Array = NDArray[np.float64]
LEAST_GAIN = 1e-3  # nats; below, a cell tells nothing
# Relative variance that counts as none: rounding of a covariance of draws.
NO_VARIANCE = 1e-12


@dataclass(frozen=True)
class MeasurementPlan:
    """Cells in the order to measure them; `sd` [1 + cells, figure] is each figure's standard deviation before and after each cell."""

    cells: tuple[int, ...]
    cost_s: tuple[float, ...]
    sd: Array

    @property
    def total_s(self) -> float:
        return float(sum(self.cost_s))

    def gain(self, weights: Array) -> float:
        """Information gained, nats: the weighted mean over figures."""
        return float(_gain(self.sd[0] ** 2, self.sd[-1] ** 2, weights))


@dataclass(frozen=True)
class Problem:
    """`figures` [draw, figure] and `log_times` [draw, cell] at the same draws; `noise_var` and `cost_s` [cell].

    `rest_var` [figure] is variance that no rate explains: it stays whatever is measured. Raises UsageError for what is not a problem.
    """

    figures: Array
    rest_var: Array
    log_times: Array
    noise_var: Array
    cost_s: Array

    def __post_init__(self) -> None:
        if not self.log_times.shape[1]:
            raise UsageError("no cells to choose from")
        if not (np.isfinite(self.figures).all() and np.isfinite(self.log_times).all()):
            raise UsageError("the figure is not a number at some draws of the rates (does the workload fit the GPU?)")
        if (self.cost_s <= 0).any() or (self.noise_var <= 0).any():
            raise UsageError("costs and noise must be positive")


def choose(problem: Problem, budget_s: float, weights: Array | None = None) -> MeasurementPlan:
    """The plan within `budget_s` that tells most about the figures, weighted where `weights` [figure] are given.

    Greedy by gain per second and by gain alone; the better of the two is returned, which guards against one long cell worth all the
    others. Stops early where no cell tells anything more. Raises UsageError when no figure varies over the draws.
    """
    weight = _weights(problem.figures, weights)
    plans = [_greedy(problem, budget_s, weight, per_second) for per_second in (True, False)]
    return max(plans, key=lambda plan: plan.gain(weight))


def follow(problem: Problem, cells: Sequence[int]) -> MeasurementPlan:
    """Expected intervals after each of the given cells, measured in that order."""
    state = _State(problem)
    sd = [state.sd()]
    for cell in cells:
        state.observe(cell)
        sd.append(state.sd())
    return MeasurementPlan(tuple(map(int, cells)), tuple(float(problem.cost_s[c]) for c in cells), np.array(sd))


def thinned(cost_s: Array, budget_s: float) -> list[int]:
    """A coarser grid of the same cost: as many cells as the budget takes, evenly spaced over the grid's own order (one at least)."""
    for count in range(len(cost_s), 0, -1):
        cells = np.unique(np.linspace(0, len(cost_s) - 1, count).round().astype(int))
        if cost_s[cells].sum() <= budget_s:
            return [int(cell) for cell in cells]
    return [int(np.argmin(cost_s))]


def linearised(figures: Array, log_rates: Array, at: Array) -> tuple[Array, Array]:
    """(figures [draw, figure] as linear in log rates, evaluated `at` [draw, rate]; what the line misses, on the draws it was fitted to).

    Least squares over draws: it takes the chance correlations of a few hundred simulations out of the choice of cells.
    """
    mean, centre = figures.mean(axis=0), log_rates.mean(axis=0)
    slope, *_ = np.linalg.lstsq(log_rates - centre, figures - mean, rcond=1e-8)
    fitted = mean + (log_rates - centre) @ slope
    return np.asarray(mean + (at - centre) @ slope), np.asarray(figures - fitted)


class _State:
    """Covariance of figures and cells, conditioned on what has been observed so far."""

    def __init__(self, problem: Problem) -> None:
        both = np.concatenate([problem.figures, problem.log_times], axis=1)
        centred = both - both.mean(axis=0)
        self.count = problem.figures.shape[1]
        self.noise_var = problem.noise_var
        self.cov: Array = centred.T @ centred / (len(both) - 1)
        self.cov[np.arange(self.count), np.arange(self.count)] += problem.rest_var

    def sd(self) -> Array:
        return np.asarray(np.sqrt(np.maximum(np.diag(self.cov)[: self.count], 0.0)))

    def after_each(self) -> Array:
        """Variance [figure, cell] of each figure when each cell is observed next."""
        n = self.count
        cross, own = self.cov[:n, n:], np.diag(self.cov)[n:]
        return np.asarray(np.diag(self.cov)[:n, None] - cross**2 / (np.maximum(own, 0.0) + self.noise_var))

    def observe(self, cell: int) -> None:
        column = self.cov[:, self.count + cell].copy()
        self.cov -= np.outer(column, column) / (max(column[self.count + cell], 0.0) + self.noise_var[cell])


def _greedy(problem: Problem, budget_s: float, weights: Array, per_second: bool) -> MeasurementPlan:
    state, cost_s = _State(problem), problem.cost_s
    sd, taken, left = [state.sd()], [], budget_s
    open_cells = np.ones(len(cost_s), dtype=bool)
    while True:
        able = open_cells & (cost_s <= left)
        if not able.any():
            break
        gain = _gain(sd[-1][:, None] ** 2, state.after_each(), weights[:, None])
        score = np.where(able, gain / cost_s if per_second else gain, -np.inf)
        best = int(np.argmax(score))
        if gain[best] < LEAST_GAIN:
            break
        state.observe(best)
        open_cells[best] = False
        left -= float(cost_s[best])
        taken.append(best)
        sd.append(state.sd())
    return MeasurementPlan(tuple(taken), tuple(float(cost_s[c]) for c in taken), np.array(sd))


def _gain(before: Array, after: Array, weights: Array) -> Array:
    floor = NO_VARIANCE * np.maximum(before, NO_VARIANCE)
    return np.asarray((weights * 0.5 * np.log(np.maximum(before, floor) / np.maximum(after, floor))).sum(axis=0))


def _weights(figures: Array, weights: Array | None) -> Array:
    """Weights that sum to 1 over the figures that vary."""
    varies = figures.std(axis=0) > np.sqrt(NO_VARIANCE) * np.maximum(np.abs(figures).max(axis=0), 1.0)
    chosen = np.where(varies, 1.0 if weights is None else weights, 0.0)
    if chosen.sum() <= 0:
        raise UsageError("the figure is the same at every draw of the rates: no measurement would change it")
    return np.asarray(chosen / chosen.sum())
