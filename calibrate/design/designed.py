"""A measurement design: cells chosen for a decision, what they cost, and the interval that they should leave."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from calibrate.design.greedy import MeasurementPlan, Problem, choose, follow, linearised, thinned
from calibrate.design.start import Start
from calibrate.steps.iterations import StepCells
from sim.errors import UsageError
from sim.sweeps.decision import Decision

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]
SIMULATIONS, FEWEST = 80, 30  # draws of the rates at which the figure is simulated, and at which it is however long that takes
MOST_S = 40.0  # of simulating
LEAST_CELLS = 8  # a calibration refuses fewer
ENOUGH = 0.05  # no more cells once the interval is within this share of what every cell together would leave


class Measurable(Protocol):
    """Cells to choose from: the model's shape, their work, and seconds for each [cell] and for the run's own checks."""

    @property
    def shape(self) -> str: ...
    @property
    def cells(self) -> StepCells: ...
    @property
    def cost_s(self) -> Array: ...
    @property
    def checks_s(self) -> float: ...


@dataclass(frozen=True)
class Designed:
    """A finished design. Figures are logarithms of the metric where it is positive everywhere: what the rates explain of it
    [draw, sweep cell], and what they do not (`rest`, same shape).
    """

    decision: Decision
    basis: str
    candidates: Measurable
    figures: Array
    rest: Array
    logs: bool
    r2: Array
    chosen: MeasurementPlan
    grid: MeasurementPlan
    everything: MeasurementPlan
    budget_s: float
    simulations: int
    met: Array | None  # share of the simulated draws that meet the goal, by sweep cell

    @property
    def decided(self) -> bool:
        """Whether the goal is met at every draw of the rates, or at none, whatever the sweep cell: nothing is left to measure for."""
        return self.met is not None and not (self.met * (1 - self.met)).any()

    def interval(self, sd: Array) -> list[tuple[float, float]]:
        """Expected 5-95 % interval of the metric by sweep cell, when its standard deviation has come down to `sd`."""
        rest, mean = self.rest.var(axis=0), self.figures.mean(axis=0)
        known, start = (np.sqrt(np.maximum(s**2 - rest, 0.0)) for s in (sd, self.chosen.sd[0]))
        values = mean + (self.figures - mean) * (known / np.maximum(start, 1e-300)) + self.rest
        low, high = np.quantile(np.exp(values) if self.logs else values, [0.05, 0.95], axis=0)
        return list(zip(low.tolist(), high.tolist(), strict=True))

    def chance_wrong(self, sd: Array) -> float | None:
        """Expected chance of judging the goal wrongly at the most open sweep cell, once the figures are known up to `sd`.

        Figures are taken as normal: with the posterior mean itself still random, P(wrong) = arctan(sd / known) / pi at a limit in the
        median, and is averaged over the mean in general.
        """
        from scipy.special import ndtr

        if self.decision.limit is None:
            return None
        limit = math.log(self.decision.limit) if self.logs else self.decision.limit
        start, mean = self.chosen.sd[0], self.figures.mean(axis=0)
        nodes, weights = np.polynomial.hermite_e.hermegauss(41)
        worst = 0.0
        for before, after, centre in zip(start, sd, mean, strict=True):
            if before > 0:
                known = math.sqrt(max(before**2 - after**2, 0.0))
                z = (limit - centre - known * nodes) / max(after, 1e-12)
                worst = max(worst, float((weights * np.minimum(ndtr(z), ndtr(-z))).sum() / weights.sum()))
        return worst


def designed(
    decision: Decision, start: Start, found: Measurable, budget_s: float, seed: int = 0, on_progress: Progress | None = None
) -> Designed:
    """Choose cells within `budget_s`, the run's checks among it; none where the goal is decided. UsageError when it is too little."""
    left = budget_s - found.checks_s
    if left <= 0 or (found.cost_s > left).all():
        raise UsageError(
            f"a budget of {budget_s:g} s is too little: the run's own checks take {found.checks_s:.1f} s, "
            f"and the shortest cell {found.cost_s.min():.2f} s more"
        )
    simulated, raw = _simulated(decision, start, on_progress)
    logs = bool((raw > 0).all())
    wanted, log_rates = np.log(raw) if logs else raw, start.log_rates()
    figures, missed = linearised(wanted, log_rates[simulated], log_rates)
    r2 = 1 - missed.var(axis=0) / np.maximum(wanted.var(axis=0), 1e-300)
    # every draw gets one of the residuals, the same for all sweep cells
    rest = missed[np.random.default_rng([seed, 61]).integers(0, len(missed), len(figures))]
    problem = Problem(figures, rest.var(axis=0), start.log_times(found.cells), start.noise_var(found.cells), found.cost_s)
    everything = follow(problem, range(len(found.cost_s)))
    met = None if decision.limit is None else (raw <= decision.limit).mean(axis=0)
    weights = None if met is None else met * (1 - met)  # how open the question is
    decided = weights is not None and not weights.any()
    chosen = follow(problem, ()) if decided else _until_enough(choose(problem, left, weights), everything)
    same = follow(problem, thinned(found.cost_s, chosen.total_s))
    return Designed(decision, start.basis, found, figures, rest, logs, r2, chosen, same, everything, budget_s, len(raw), met)


def _until_enough(chosen: MeasurementPlan, everything: MeasurementPlan) -> MeasurementPlan:
    """The plan cut where its sd is within ENOUGH of what all cells together would leave, on average over the figures that vary."""
    start = chosen.sd[0]
    varies = start > 0
    reach = np.mean(everything.sd[-1][varies] / start[varies])
    for count in (0, *range(LEAST_CELLS, len(chosen.cells))):
        if np.mean(chosen.sd[count][varies] / start[varies]) <= reach + ENOUGH:
            return MeasurementPlan(chosen.cells[:count], chosen.cost_s[:count], chosen.sd[: count + 1])
    return chosen


def _simulated(decision: Decision, start: Start, on_progress: Progress | None) -> tuple[NDArray[np.int64], Array]:
    """(draws, the figure [draw, sweep cell]) at SIMULATIONS draws, or at those that MOST_S allow, FEWEST at least: spread evenly however
    many there are.
    """
    order = np.argsort([int(f"{place:010b}"[::-1], 2) for place in range(SIMULATIONS)])  # bit-reversed: every beginning is even
    draws = np.linspace(0, len(start.rates.beta) - 1, SIMULATIONS).round().astype(np.int64)[order]
    begin, rows = time.monotonic(), list[list[float]]()
    for draw in draws.tolist():
        if len(rows) >= FEWEST and time.monotonic() - begin > MOST_S:
            break
        rows.append(decision.at(start.rates.at(draw)))
        if on_progress:
            on_progress(len(rows), SIMULATIONS)
    return draws[: len(rows)], np.array(rows)
