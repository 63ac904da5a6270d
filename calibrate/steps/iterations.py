"""Measured engine iterations: their work, their times, and what they were measured on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.cost.work import Work
from sim.errors import UsageError

Array = NDArray[np.float64]
Labels = NDArray[np.str_]
FIELDS = Work._fields
MULTI_GPU = "multi-gpu"  # an iteration of whatever composition over several GPUs
KINDS = ("decode", "prefill", "mixed", MULTI_GPU)
# Longest and shortest step that can be an engine's: outside, the unit is wrong.
SHORTEST_S, LONGEST_S = 1e-6, 600.0


@dataclass(frozen=True)
class StepCells:
    """n measured iterations.

    work [n, field]: sim.cost.work.Work per GPU; roofline_work [n, field]: the same as if the model's GEMMs had not been measured;
    step_s [n]: median seconds over repeats; repeat_sd [n]: standard error of its logarithm; kind, model, cell [n]: labels; run [n]: the
    start of an engine; machine [n]: empty where unknown; within_sd [n]: the standard error by the repeats of visits alone; visits [n]: how
    often the cell was visited, 0 where unknown; visits_sd [n]: standard deviation of its visits' logarithms.
    """

    work: Array
    roofline_work: Array
    step_s: Array
    repeat_sd: Array
    kind: Labels
    model: Labels
    cell: Labels
    run: Labels
    machine: Labels
    within_sd: Array
    visits: Array
    visits_sd: Array

    def __len__(self) -> int:
        return int(self.step_s.size)

    def take(self, keep: NDArray[np.bool_] | NDArray[np.intp]) -> StepCells:
        """The cells selected by a mask or by indices."""
        return StepCells(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))

    def as_work(self) -> Work:
        """The work with one array [n] per field; a plain zero where no cell has any."""
        columns = zip(FIELDS, self.work.T, strict=True)
        return Work(**{name: np.ascontiguousarray(column) if column.any() else 0.0 for name, column in columns})

    def unmeasured(self) -> StepCells:
        """The same cells, of a model or on a GPU whose GEMMs nobody has measured."""
        return replace(self, work=self.roofline_work)

    def kind_index(self) -> NDArray[np.int64]:
        """Position of each cell's kind in KINDS [n]."""
        return np.array([KINDS.index(kind) for kind in self.kind], dtype=np.int64)

    def run_names(self) -> tuple[str, ...]:
        """The runs, where there are several: each has a host of its own. Of one run the rates are its own host's."""
        names = np.unique(self.run).tolist()
        return tuple(names) if len(names) > 1 else ()

    def fingerprint(self) -> str:
        """sha256 of everything that enters a fit."""
        digest = hashlib.sha256()
        for name in self.__dataclass_fields__:
            values = getattr(self, name)
            text = "\n".join(values.tolist()).encode() if values.dtype.kind == "U" else np.ascontiguousarray(values).tobytes()
            digest.update(name.encode() + text)
        return digest.hexdigest()

    def mark(self) -> str:
        """A short hash of what was measured, labels and times alone: the same however the work is counted."""
        return hashlib.sha256("\n".join(self.cell.tolist()).encode() + np.ascontiguousarray(self.step_s).tobytes()).hexdigest()[:16]


def make_cells(
    works: Sequence[Work],
    step_s: Iterable[float],
    *,
    kind: Iterable[str],
    model: Iterable[str],
    cell: Iterable[str],
    roofline: Sequence[Work] | None = None,
    repeat_sd: Iterable[float] | None = None,
    run: str = "",
    machine: str = "",
) -> StepCells:
    """Cells of one run from one Work of floats each. Raises UsageError on NaN, non-positive or absurd times, naming the first cell."""
    matrix, plain = (np.array(w, dtype=float).reshape(len(works), len(FIELDS)) for w in (works, works if roofline is None else roofline))
    times = np.asarray(list(step_s), dtype=float)
    noise = np.zeros(times.size) if repeat_sd is None else np.nan_to_num(np.asarray(list(repeat_sd), dtype=float))
    labels = [np.asarray(list(v), dtype=str) for v in (kind, model, cell)]
    if len({len(works), len(plain), times.size, noise.size, *(v.size for v in labels)}) != 1:
        raise UsageError("measurements and their labels differ in number")
    for bad, what in (
        (~np.isfinite(times), "time is not a number"),
        (times <= 0, "time is not positive"),
        ((times < SHORTEST_S) | (times > LONGEST_S), f"time is not in {SHORTEST_S:g}..{LONGEST_S:g} s (wrong unit?)"),
        (~np.isfinite(matrix).all(axis=1), "work is not a number"),
        ((matrix < 0).any(axis=1), "work is negative"),
        (~np.isin(labels[0], KINDS), f"kind is none of {', '.join(KINDS)}"),
    ):
        if bad.any():
            i = int(np.argmax(bad))
            raise UsageError(f"cell '{labels[2][i]}' of {labels[1][i]}: {what} ({times[i]:g} s)")
    unknown = np.zeros(times.size)
    ran = (np.full(times.size, run), np.full(times.size, machine))
    return StepCells(matrix, plain, times, noise, labels[0], labels[1], labels[2], *ran, noise, unknown, unknown)


def concatenate(parts: Sequence[StepCells]) -> StepCells:
    """All cells of several tables."""
    if not parts:
        raise UsageError("no measurements")
    return StepCells(*(np.concatenate([getattr(p, name) for p in parts]) for name in StepCells.__dataclass_fields__))


def machines_of(cells: StepCells, runs: Sequence[str]) -> list[str]:
    """The machine of each run [run]; where it is not known, one of the run's own."""
    known: dict[str, Any] = {run: machine for run, machine in zip(cells.run.tolist(), cells.machine.tolist(), strict=True) if machine}
    return [known.get(run, f"that of {run}") for run in runs]


def check_enough(cells: StepCells, least: int = 8) -> None:
    """Raise UsageError when there is too little to learn from: few cells, or one composition."""
    if len(cells) < least:
        raise UsageError(f"too few cells to calibrate on: {len(cells)}, at least {least} are needed")
    if len(np.unique(cells.work, axis=0)) < 3:
        raise UsageError("all cells measure the same one or two compositions: nothing separates the rates")
