"""A posterior's predictions of an engine grid: every cell's step time by its draws, on a host drawn again, and nothing learnt.

The interval of a cell holds the rates, what hosts differ by, the formula's own error and the cell's noise, as a calibration's held-out
cells do. Beside it: the same with one number learnt from the file, the factor of its host.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrate.steps.grid_cells import Grid
from calibrate.steps.held_out import Scores, hosts_of, intervals, score
from calibrate.steps.iterations import KINDS, StepCells
from calibrate.steps.noise import with_scatter
from calibrate.steps.step_model import log_likelihood, log_times
from sim.cost.rates import UNITS, Rates
from sim.rates.posterior import PosteriorError, PosteriorFile, rates_from_file, read_posterior

Array = NDArray[np.float64]
DRAWS = 4000  # of the posterior's, repeated where it has fewer: noise is drawn again each time
WIDEST = 6.0  # standard deviations of hosts among which a file's own is looked for


@dataclass(frozen=True, slots=True)
class ScoredPart:
    """Scores of some of a file's cells: all, or one kind of iteration."""

    cells: str
    scores: Scores


@dataclass(frozen=True, slots=True)
class PredictedCell:
    """One cell: seconds measured and predicted (5 %, median, 95 %), and the standard error of the measurement (log)."""

    cell: str
    kind: str
    measured_s: float
    low_s: float
    predicted_s: float
    high_s: float
    noise: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True)
class Predicted:
    """One file predicted. `host` is the factor its host is found at, `given_host` the scores of all cells with it; `learnt_from` says that
    the posterior was learnt from these very measurements: no prediction then.
    """

    source: str
    engine: str
    parts: tuple[ScoredPart, ...]
    host: float
    given_host: Scores
    cells: tuple[PredictedCell, ...]
    learnt_from: bool


def predict(grid: Grid, path: Path, seed: int, draws: int = DRAWS) -> Predicted:
    """Predict the cells of `grid` with the posterior in `path`. Raises PosteriorError when that is none, or of another GPU."""
    file = read_posterior(path)
    if "sigma" not in file.variables or file.variables["sigma"].shape[1:] != (len(KINDS),):
        raise PosteriorError(f"{path}: says nothing of its model error: its predictions cannot be judged")
    rates = rates_from_file(path, grid.gpu, grid.precision, model_error=False, tp=grid.tp).draws
    sigma, host_sd = file.variables["sigma"], file.number("host_sd", 0.0)
    point = Rates(**{name: float(np.median(getattr(rates, name))) for name in UNITS})
    cells = with_scatter(grid.cells, point)  # nothing is fitted to them for it
    rng = np.random.default_rng([seed, 5])
    pick = np.resize(np.arange(len(sigma)), max(draws, len(sigma)))
    drawn, errors = Rates(**{name: np.asarray(getattr(rates, name))[pick] for name in UNITS}), sigma[pick]
    hosts = hosts_of(cells, (), np.empty((len(pick), 0)), host_sd, rng)
    low, median, high = intervals(cells, drawn, errors, rng, hosts)
    host = _host(cells, point, np.median(sigma, axis=0), host_sd)
    given = intervals(cells, drawn, errors, rng, np.full((1, 1), host))
    each = zip(cells.cell.tolist(), cells.kind.tolist(), cells.step_s, low, median, high, cells.repeat_sd, strict=True)
    rows = [PredictedCell(name, kind, *(float(v) for v in values)) for name, kind, *values in each]
    return Predicted(
        grid.source, grid.engine, tuple(_parts(rows)), host, score(cells.step_s, *given), tuple(sorted(rows, key=lambda c: -abs(c.error))),
        grid.cells.mark() in _marks(file),
    )  # fmt: skip


def pooled(found: list[Predicted]) -> list[ScoredPart]:
    """Scores over the cells of several files, all and by kind."""
    return _parts([cell for each in found for cell in each.cells])


def _parts(cells: Sequence[PredictedCell]) -> list[ScoredPart]:
    """Scores of all cells and, where they are of several kinds, of each."""
    measured, low, median, high = np.array([[c.measured_s, c.low_s, c.predicted_s, c.high_s] for c in cells]).T
    kind = np.array([c.kind for c in cells])
    kinds = [k for k in KINDS if (kind == k).any()]
    each = (ScoredPart(k, score(measured, low, median, high, kind == k)) for k in kinds if len(kinds) > 1)
    return [ScoredPart("all", score(measured, low, median, high)), *each]


def _host(cells: StepCells, rates: Rates, sigma: Array, host_sd: float) -> float:
    """The likeliest factor of the file's host, log-normal of `host_sd` before it was seen, at the medians of rates and of errors [kind]."""
    if not host_sd:
        return 1.0
    logs = np.linspace(-WIDEST, WIDEST, 601) * host_sd
    times = log_times(cells, rates, np.exp(logs)[:, None])
    likely = log_likelihood(cells, times, np.broadcast_to(sigma, (logs.size, sigma.size))).sum(axis=1) - np.square(logs / host_sd) / 2
    return float(np.exp(logs[np.argmax(likely)]))


def _marks(file: PosteriorFile) -> list[str]:
    """Marks of the measurements that a posterior was learnt from; none in a file that does not say."""
    try:
        found = json.loads(str(file.attrs.get("learnt_from", "[]")))
    except ValueError:
        raise PosteriorError(f"{file.path}: does not say what it was learnt from") from None
    return [str(mark) for mark in found] if isinstance(found, list) else []
