"""GEMM surfaces learnt from kernel tables: time over the roofline by size and rows, for each GPU and dtype.

    python -m studies.kernel_tables.gemm_fit DIR OUT.npz

Tables that time kernels launched one by one show the host's launch time for small products. Such a table is used only in dtypes where
its shortest call is short (LONGEST_FLOOR_S).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.cost.gemm_surface import Surface
from sim.errors import UsageError
from sim.rates.priors import gemm_flops
from sim.specs.precision import DTYPE_BYTES
from studies.kernel_tables.latency_tables import Table, read_tables
from studies.program import program

Array = NDArray[np.float64]
DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4"}
SIZES = np.arange(21.0, 29.5)  # log2 weights: 2 M to 537 M
WIDTH = 0.7  # of log2 weights: shapes within a factor of 1.6 tell of one another
LEAST_SIDE = 1024.0  # of a layer's GEMMs; slimmer ones are others
LONGEST_FLOOR_S = 12e-6
MOST_ROWS = 8192.0
SOURCE = "published kernel tables of vLLM, Apache-2.0; geometric means over shapes"


def surfaces(table: Table) -> dict[tuple[str, str], Surface]:
    """Surfaces of a GEMM table by GPU and dtype. UsageError without 16-bit rows."""
    m, n, k, seconds = (table.number(name) for name in ("m", "n", "k", "latency"))
    seconds, dtype = seconds / 1e3, table.text("gemm_dtype")
    kept = (np.minimum(n, k) >= LEAST_SIDE) & (m <= MOST_ROWS)
    of = {ours: kept & (dtype == theirs) for theirs, ours in DTYPES.items()}
    if not of["bf16"].any():
        raise UsageError(f"{table.path}: no 16-bit products of at least {LEAST_SIDE:g} by {LEAST_SIDE:g}")
    sixteen = of["bf16"]
    bandwidth = float((2.0 * n * k / seconds)[sixteen & (m == m[sixteen].min()) & (2 * n * k > 2 * (table.gpu.l2_bytes or 5e7))].max())
    flops = float((2.0 * m * n * k / seconds)[sixteen].max())
    found = {}
    for ours, rows in of.items():
        if not rows.any() or (ours != "bf16" and seconds[rows].min() > LONGEST_FLOOR_S):
            continue
        scaled = flops * gemm_flops(table.gpu, ours) / gemm_flops(table.gpu, "bf16")
        grid = np.unique(m[rows])
        empty = Surface(SIZES, grid, np.zeros((SIZES.size, grid.size)), bandwidth, scaled, DTYPE_BYTES[ours])
        over = np.log(seconds[rows] / empty.roofline_s(n[rows] * k[rows], m[rows]))
        found[table.gpu.name, ours] = Surface(
            SIZES, grid, _smoothed(np.log2(n[rows] * k[rows]), m[rows], over, grid), bandwidth, scaled, DTYPE_BYTES[ours]
        )
    return found


def _smoothed(sizes: Array, m: Array, over: Array, grid: Array) -> Array:
    """Medians of `over` [row] by rows, weighted by nearness to each of SIZES: [size, grid]."""
    out = np.empty((SIZES.size, grid.size))
    for j, count in enumerate(grid):
        at = np.flatnonzero(m == count)
        at = at[np.argsort(over[at])]
        near = np.cumsum(np.exp(-0.5 * np.square((sizes[at] - SIZES[:, None]) / WIDTH)), axis=1)
        out[:, j] = [over[at[np.searchsorted(line, 0.5 * line[-1])]] for line in near]
    return out


def pack(found: Mapping[tuple[str, str], Surface], path: Path, source: str = SOURCE) -> None:
    """Write surfaces as one file, float16: on the union of their rows."""
    rows = np.unique(np.concatenate([each.rows for each in found.values()]))
    over = [[np.interp(np.log(rows), np.log(each.rows), line) for line in each.log_over] for each in found.values()]
    np.savez_compressed(
        path,
        gpu=np.array([gpu for gpu, _ in found]),
        dtype=np.array([dtype for _, dtype in found]),
        sizes=SIZES,
        rows=rows,
        log_over=np.array(over, dtype=np.float16),
        bytes_per_s=np.array([each.bytes_per_s for each in found.values()]),
        flops_per_s=np.array([each.flops_per_s for each in found.values()]),
        source=np.array(source),
    )


@program("studies.kernel_tables.gemm_fit", "DIR OUT.npz")
def main(argv: Sequence[str]) -> int:
    """Learn, print the rooflines, write. Returns the exit code."""
    found: dict[tuple[str, str], Surface] = {}
    for table in read_tables(Path(argv[0]), names=("gemm_perf",)):
        found |= surfaces(table)
    for (gpu, dtype), each in found.items():
        print(f"{gpu:20} {dtype:6} {each.bytes_per_s / 1e12:6.3f} TB/s {each.flops_per_s / 1e12:7.0f} TFLOP/s  {each.rows.size} rows")
    pack(found, Path(argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
