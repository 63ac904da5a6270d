"""Held-out errors by cell, its runs together: what remains of an error when visits and hosts have been averaged over.

A cell of one (GPU, model) was measured in up to a few runs on different hosts, each of one to a dozen visits. Its middle is the mean of all
of them, in logarithms, each weighed by its own noise and freed of what its run's host does; a prediction is held against that. Beside the
errors stands what the middles' own standard errors would give if every prediction were exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.steps.cells import StepCells

Array = NDArray[np.float64]
Labels = NDArray[np.str_]
SIGNIFICANT = 3.0  # standard errors
DRAWS = 400  # of errors that are noise alone
LEAST_SD = 1e-3  # no run of a cell is told better than this


@dataclass(frozen=True, slots=True)
class CellError:
    """One cell of a model: how far its prediction is off the middle of its runs, and the middle's own standard error (fractions)."""

    model: str
    cell: str
    part: str
    runs: int
    visits: int
    error: float
    noise: float

    @property
    def significant(self) -> bool:
        return abs(self.error) > SIGNIFICANT * self.noise


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of errors: median, 90 %, worst, and the share within a bound."""

    median: float
    p90: float
    worst: float
    within: float


@dataclass(frozen=True, slots=True)
class Together:
    """Errors of the cells of one part, the same if noise were all there is, and those cells that are off by more than noise explains."""

    part: str
    n: int
    errors: Sizes
    noise: Sizes
    significant: int
    worst_significant: float  # 0 without any


def parts_of(cells: StepCells) -> Labels:
    """What kind of iteration each cell is [n], told finer than the model error does: ragged decodes and packed chunks apart, and those that
    are launched kernel by kernel.
    """
    own = np.array([label.split(":")[0] if label.split(":")[0] in ("ragged", "packed") else "" for label in cells.cell.tolist()])
    names = np.where((own != "") & (cells.kind != "spread"), own, cells.kind)
    out: Labels = np.where(cells.as_bill().eager_layers > 0, np.char.add(names, ", launched"), names)
    return out


def cell_errors(cells: StepCells, predicted_s: Array) -> list[CellError]:
    """One row for each (model, cell), worst first; `predicted_s` [n] is each run's own prediction, on its own host."""
    index = cells.places()
    weight = np.maximum(cells.repeat_sd, LEAST_SD) ** -2.0
    whole = np.bincount(index, weight)
    off = np.bincount(index, weight * np.log(predicted_s / cells.step_s)) / whole
    runs, visits = np.bincount(index), np.bincount(index, np.maximum(cells.visits, 1.0))
    first, parts = np.unique(index, return_index=True)[1], parts_of(cells)
    rows = [
        CellError(
            model=str(cells.model[first[i]]),
            cell=str(cells.cell[first[i]]),
            part=str(parts[first[i]]),
            runs=int(runs[i]),
            visits=int(visits[i]),
            error=float(np.expm1(off[i])),
            noise=float(whole[i] ** -0.5),
        )
        for i in range(whole.size)
    ]
    return sorted(rows, key=lambda row: -abs(row.error))


def together(rows: Sequence[CellError], bound: float, rng: np.random.Generator) -> list[Together]:
    """All cells, then each part of them; `bound` is the error aimed at."""
    parts = sorted({row.part for row in rows})
    return [_one("all", rows, bound, rng), *(_one(part, [row for row in rows if row.part == part], bound, rng) for part in parts)]


def between_runs(cells: StepCells, predicted_s: Array) -> float:
    """How far runs of one cell lie apart, over what their noise says (root of chi-square by its degrees of freedom); nan of one run."""
    index = cells.places()
    weight, off = np.maximum(cells.repeat_sd, LEAST_SD) ** -2.0, np.log(predicted_s / cells.step_s)
    middle = np.bincount(index, weight * off) / np.bincount(index, weight)
    free = len(cells) - middle.size
    return float(np.sqrt((weight * np.square(off - middle[index])).sum() / free)) if free else float("nan")


def _one(part: str, rows: Sequence[CellError], bound: float, rng: np.random.Generator) -> Together:
    errors, noise = (np.abs([getattr(row, name) for row in rows]) for name in ("error", "noise"))
    drawn = np.abs(np.expm1(noise * rng.standard_normal((DRAWS, len(rows)))))
    far = [abs(row.error) for row in rows if row.significant]
    return Together(part, len(rows), _sizes(errors[None, :], bound), _sizes(drawn, bound), len(far), max(far, default=0.0))


def _sizes(errors: Array, bound: float) -> Sizes:
    """Of errors [draw, n], the means over the draws."""
    median, p90, worst = (float(np.quantile(errors, q, axis=1).mean()) for q in (0.5, 0.9, 1.0))
    return Sizes(median, p90, worst, float((errors <= bound).mean()))
