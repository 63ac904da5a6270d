"""Measured engine iterations as bills with their times: the table every step-time model learns from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.bill import Bill, Shape, mixed_shape
from sim.errors import UsageError
from sim.specs.model import ModelSpec

Array = NDArray[np.float64]
Labels = NDArray[np.str_]
FIELDS = Bill._fields
SPREAD = "spread"  # an iteration of whatever composition, over several GPUs: its host is another, and so is what the formula misses of it
KINDS = ("decode", "prefill", "mixed", SPREAD)
# Longest and shortest step that can be an engine's: outside, the unit is wrong.
SHORTEST_S, LONGEST_S = 1e-6, 600.0


@dataclass(frozen=True)
class StepCells:
    """n measured iterations.

    bill [n, field]: the terms of sim.bill.Bill per GPU, in its order; step_s [n]: median seconds over repeats; repeat_sd [n]:
    standard error of the median's logarithm; kind [n]: decode, prefill, mixed or spread; model, cell [n]: labels for held-out folds; run
    [n]: the start of an engine that it is of; machine [n]: that it ran on, empty where that is not known; within_sd [n]: the standard error
    by the repeats of visits alone; visits [n]: how often the cell was visited, 0 where that is not known, and visits_sd [n] the standard
    deviation of its visits' logarithms.
    """

    bill: Array
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

    def places(self) -> NDArray[np.intp]:
        """Which distinct cell of which model each is [n], counted from 0: the same for repeats and runs of one cell."""
        names = np.char.add(np.char.add(self.model, "|"), self.cell)
        out: NDArray[np.intp] = np.unique(names, return_inverse=True)[1]
        return out

    def as_bill(self) -> Bill:
        """The bill with one array [n] per term."""
        return bill_of(self.bill)

    def fingerprint(self) -> str:
        """sha256 of everything that enters a fit."""
        digest = hashlib.sha256()
        for name in self.__dataclass_fields__:
            values = getattr(self, name)
            text = "\n".join(values.tolist()).encode() if values.dtype.kind == "U" else np.ascontiguousarray(values).tobytes()
            digest.update(name.encode() + text)
        return digest.hexdigest()

    def mark(self) -> str:
        """A short hash of what was measured, labels and times alone: the same however the cells are priced."""
        return hashlib.sha256("\n".join(self.cell.tolist()).encode() + np.ascontiguousarray(self.step_s).tobytes()).hexdigest()[:16]


def bill_of(matrix: Any) -> Bill:
    """Bill whose terms are the columns of `matrix` [n, field] (array or tensor)."""
    return Bill(**{name: matrix[:, i] for i, name in enumerate(FIELDS)})


def grid_shape(
    model: ModelSpec, contexts: Iterable[float], chunks: Iterable[tuple[float, float]], *, tp: int = 1, intake: bool = True
) -> Shape:
    """An iteration of an engine grid: decodes at `contexts`, and chunks of (tokens, tokens placed before them).

    A grid sends every chunk as a new request whose placed context arrives as part of its prompt, so that the host takes in both; without
    `intake`, the prompts were taken in before.
    """
    ends = [(float(tokens), float(start + tokens), True) for tokens, start in chunks]
    taken = sum(end for _, end, _ in ends) if intake else 0.0
    shape = mixed_shape(model, map(float, contexts), ends, tp=tp)
    return replace(shape, intake_tokens=taken, runner2_tokens=taken if model.second_runner else 0.0)


def make_cells(
    bills: Sequence[Bill],
    step_s: Iterable[float],
    *,
    kind: Iterable[str],
    model: Iterable[str],
    cell: Iterable[str],
    repeat_sd: Iterable[float] | None = None,
    run: str = "",
    machine: str = "",
) -> StepCells:
    """Cells of one run from one Bill of floats each. Raises UsageError on NaN, non-positive or absurd times, naming the first cell."""
    matrix = np.array([[float(v) for v in b] for b in bills], dtype=float).reshape(len(bills), len(FIELDS))
    times = np.asarray(list(step_s), dtype=float)
    spread = np.zeros(times.size) if repeat_sd is None else np.nan_to_num(np.asarray(list(repeat_sd), dtype=float))
    labels = [np.asarray(list(v), dtype=str) for v in (kind, model, cell)]
    if len({matrix.shape[0], times.size, spread.size, *(v.size for v in labels)}) != 1:
        raise UsageError("measurements and their labels differ in number")
    for bad, what in (
        (~np.isfinite(times), "time is not a number"),
        (times <= 0, "time is not positive"),
        ((times < SHORTEST_S) | (times > LONGEST_S), f"time is not in {SHORTEST_S:g}..{LONGEST_S:g} s (wrong unit?)"),
        (~np.isfinite(matrix).all(axis=1), "bill is not a number"),
        ((matrix < 0).any(axis=1), "bill is negative"),
        (~np.isin(labels[0], KINDS), f"kind is none of {', '.join(KINDS)}"),
    ):
        if bad.any():
            i = int(np.argmax(bad))
            raise UsageError(f"cell '{labels[2][i]}' of {labels[1][i]}: {what} ({times[i]:g} s)")
    unknown = np.zeros(times.size)
    ran = (np.full(times.size, run), np.full(times.size, machine))
    return StepCells(matrix, times, spread, labels[0], labels[1], labels[2], *ran, spread, unknown, unknown)


def unmeasured(cells: StepCells) -> StepCells:
    """The same cells, of a model or on a GPU whose matrix products nobody has measured (sim.products)."""
    bill = cells.bill.copy()
    bill[:, [FIELDS.index("choice_bytes"), FIELDS.index("choice_known")]] = 0.0
    return replace(cells, bill=bill)


def concatenate(parts: Sequence[StepCells]) -> StepCells:
    """All cells of several tables."""
    if not parts:
        raise UsageError("no measurements")
    return StepCells(*(np.concatenate([getattr(p, name) for p in parts]) for name in StepCells.__dataclass_fields__))


def check_enough(cells: StepCells, least: int = 8) -> None:
    """Raise UsageError when there is too little to learn from: few cells, one composition, or times that do not vary."""
    if len(cells) < least:
        raise UsageError(f"too few cells to calibrate on: {len(cells)}, at least {least} are needed")
    if len(np.unique(cells.bill, axis=0)) < 3:
        raise UsageError("all cells measure the same one or two compositions: nothing separates the rates")
    if np.ptp(np.log(cells.step_s)) < 1e-6:
        raise UsageError("all step times are equal: zero variance, nothing to learn from")
