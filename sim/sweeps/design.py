"""Designs of experiments: the cells of a Cartesian product or of a Latin hypercube over a few axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.errors import UsageError

DIGITS = 6  # of a value drawn from a range: what a label shows is what is run


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, drawn evenly, or evenly on a logarithmic scale. Whole numbers where both ends are.

    Raises UsageError unless low < high, both finite, and above 0 for a logarithmic scale.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise UsageError(f"a range needs two numbers, the lower one first, not {self}")
        if self.log and self.low <= 0:
            raise UsageError(f"a logarithmic range needs numbers above 0, not {self}")

    def __str__(self) -> str:
        return f"{self.low}:{self.high}{':log' if self.log else ''}"

    def at(self, share: float) -> float | int:
        """The value below which `share` (0 to 1) of the range lies."""
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        low, high = (self.low, self.high + 1) if whole else (self.low, self.high)
        value = low * (high / low) ** share if self.log else low + (high - low) * share
        return min(int(value), int(self.high)) if whole else float(f"{value:.{DIGITS}g}")


Axis = Sequence[Any] | Range
"""What one key varies over: values, or a range."""


@dataclass(frozen=True, slots=True)
class Design:
    """Cells by place: `dims` and `shape` of the table they fill, row-major. `samples` None: the Cartesian product of the axes."""

    axes: dict[str, Axis]
    samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for key, axis in self.axes.items():
            if isinstance(axis, Range):
                if self.samples is None:
                    raise UsageError(f"{key}: a range needs a number of samples, a product needs values")
            elif not len(axis):
                raise UsageError(f"{key}: no values to vary it over")
            elif len({str(value) for value in axis}) < len(axis):
                raise UsageError(f"{key}: a value is there twice")
        if self.samples is not None and not self.axes:
            raise UsageError("samples of what? nothing is varied")

    @property
    def dims(self) -> tuple[str, ...]:
        """One per axis; `sample` alone where cells are drawn."""
        return ("sample",) if self.samples is not None else tuple(self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each dimension."""
        if self.samples is not None:
            return (self.samples,)
        return tuple(len(axis) for axis in self.axes.values() if not isinstance(axis, Range))

    @property
    def count(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)

    def cells(self) -> Iterator[tuple[Any, ...]]:
        """The values of each cell, one per axis, in the order of the table."""
        if self.samples is None:
            yield from itertools.product(*(axis for axis in self.axes.values() if not isinstance(axis, Range)))
            return
        from scipy.stats.qmc import LatinHypercube

        shares = LatinHypercube(len(self.axes), seed=np.random.default_rng(self.seed)).random(self.samples)
        for row in shares.tolist():
            yield tuple(_at(axis, share) for axis, share in zip(self.axes.values(), row, strict=True))

    def coords(self) -> dict[str, tuple[str, list[Any]]]:
        """Coordinate by axis: its dimension and its values."""
        if self.samples is None:
            return {key: (key, list(axis)) for key, axis in self.axes.items() if not isinstance(axis, Range)}
        columns = zip(*self.cells(), strict=True)
        return {key: ("sample", list(column)) for key, column in zip(self.axes, columns, strict=True)}


def _at(axis: Axis, share: float) -> Any:
    return axis.at(share) if isinstance(axis, Range) else axis[min(int(share * len(axis)), len(axis) - 1)]
