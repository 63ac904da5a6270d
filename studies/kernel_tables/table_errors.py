"""Errors of the formula on kernel latency tables, by GPU, operation, dtype and size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from studies.kernel_tables.latency_tables import Table
from studies.kernel_tables.rows import Predicted, predicted

EDGES = {"bytes": (2**16, 2**20, 2**24), "context": (1024, 8192), "tokens": (16, 256, 2048), "rows": (16, 64, 256, 1024)}
LAUNCH_BOUND_S = 20e-6  # rows below are the launch's time, not the kernel's


@dataclass(frozen=True, slots=True)
class Part:
    """Errors of one operation's rows over the measured time: median of the absolute value, median with its sign, 90th percentile."""

    gpu: str
    operation: str
    dtype: str
    axis: str
    size: str
    n: int
    median: float
    bias: float
    p90: float


@dataclass(frozen=True, slots=True)
class Passed:
    """Rows of a table that are not predicted: no term, an unknown dtype or kernel, or kernels launched one by one."""

    gpu: str
    table: str
    rows: int
    of: int
    path: str


def errors(tables: Sequence[Table]) -> tuple[list[Part], list[Passed]]:
    """(errors by part, what was passed over of each table). Rows below LAUNCH_BOUND_S are left out."""
    parts: list[Part] = []
    passed: list[Passed] = []
    for table in tables:
        found = predicted(table)
        parts.extend(part for each in found for part in _parts(each))
        if rows := len(table) - sum(len(each.measured_s) for each in found):
            passed.append(Passed(table.gpu.name, table.name, rows, len(table), str(table.path)))
    return parts, passed


def _parts(found: Predicted) -> Iterator[Part]:
    timed, edges = found.measured_s >= LAUNCH_BOUND_S, EDGES[found.axis]
    sizes = np.searchsorted(edges, found.size)
    logs = np.log(found.predicted_s / found.measured_s)
    for dtype in np.unique(found.dtype):
        for i in range(len(edges) + 1):
            of = timed & (found.dtype == dtype) & (sizes == i)
            if of.any():
                own = logs[of]
                size = f"<= {_short(edges[i])}" if i < len(edges) else f"> {_short(edges[-1])}"
                values = (np.median(np.abs(own)), np.median(own), np.quantile(np.abs(own), 0.9))
                median, bias, p90 = (float(np.expm1(value)) for value in values)
                yield Part(found.gpu, found.operation, str(dtype), found.axis, size, int(of.sum()), median, bias, p90)


def _short(edge: int) -> str:
    return f"{edge >> 20}M" if edge >= 2**20 else f"{edge >> 10}K" if edge >= 2**10 else str(edge)
