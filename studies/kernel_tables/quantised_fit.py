"""Surfaces of kernels of quantised weights, learnt from the linear layers of a loaded engine (`measure --suite layers`).

    python -m studies.kernel_tables.quantised_fit KERNEL:FILE... OUT.npz

KERNEL is the one that the engine ran (sim.specs.linear_kernels): its log says so, the file does not.

At each number of rows a call takes a + b weights: a line through a layer's GEMMs, in relative terms. Four GEMMs of one model say no
more, and beyond their sizes a line is what a floor and a bandwidth make. Times that never fall when a row is added come nearest to those:
blocks of fp8 take longer at one row than at four, for they are padded. Calls include what quantises activations.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression, nnls

from calibrate.measurement import check_columns, model_of, open_measurement, precision_of
from sim.cost.gemm import REPLAY_S, gemms_on, roofline
from sim.cost.gemm_surface import KERNEL_BYTES, Surface
from sim.errors import UsageError
from sim.rates.priors import gemm_flops
from sim.specs.gpus import get_gpu
from sim.specs.linear_kernels import BACKENDS
from sim.specs.stored import storage_format
from studies.kernel_tables.gemm_fit import SIZES, pack
from studies.program import program

Array = NDArray[np.float64]


def surface(kernel: str, path: Path) -> tuple[tuple[str, str], Surface]:
    """(GPU, kernel) and surface of a file of layers. UsageError for weights that are not quantised and GPUs without 16-bit products."""
    data = open_measurement(path)
    check_columns(data, path, "point", ("part", "k", "n", "rows", "status", "time_s_median"), seconds=("time_s_median",))
    gpu, precision = get_gpu(str(data.attrs["gpu_name"])), precision_of(data.attrs)
    storage, sixteen = storage_format(model_of(data.attrs, path), precision), gemms_on(gpu)
    if kernel not in BACKENDS.get(storage, ()):
        raise UsageError(f"{path}: {kernel} is no kernel of {storage} weights")
    if kernel not in KERNEL_BYTES or sixteen is None:
        raise UsageError(f"{path}: needs one of {', '.join(KERNEL_BYTES)} on a GPU whose 16-bit products are packaged")
    kept = (data["status"].values == "ok") & (data["n"].values > 0)
    weights = (data["k"].values.astype(float) * data["n"].values)[kept]
    rows, seconds = data["rows"].values.astype(float)[kept], data["time_s_median"].values[kept] - REPLAY_S
    best, grid = roofline(sixteen), np.unique(rows)
    flops = best.flops_per_s * gemm_flops(gpu, precision.weights) / gemm_flops(gpu, "bf16")
    shape = (SIZES.size, grid.size)
    empty = Surface(SIZES, grid, np.zeros(shape), best.bytes_per_s, flops, KERNEL_BYTES[kernel])
    sizes, lines = 2.0**SIZES, [line(weights[rows == count], seconds[rows == count]) for count in grid]
    over = np.empty(shape)
    for i, size in enumerate(sizes):
        rising = isotonic_regression(np.log([floor + slope * size for floor, slope in lines])).x
        over[i] = rising - np.log(empty.roofline_s(float(size), grid))
    return (gpu.name, kernel), Surface(SIZES, grid, over, best.bytes_per_s, flops, KERNEL_BYTES[kernel])


def line(weights: Array, seconds: Array) -> tuple[float, float]:
    """Floor in s and s per weight, neither below 0, of least relative squares."""
    (floor, slope), _ = nnls(np.stack([1e-6 / seconds, weights * 1e-14 / seconds], axis=1), np.ones(seconds.size))
    return float(floor) * 1e-6, float(slope) * 1e-14


@program("studies.kernel_tables.quantised_fit", "KERNEL:FILE... OUT.npz")
def main(argv: Sequence[str]) -> int:
    """Learn, print floors and bandwidths of one row, write. Returns the exit code."""
    out = argv[1:][-1]
    found = dict(surface(kernel, Path(path)) for kernel, _, path in (each.partition(":") for each in argv[:-1]))
    for (gpu, kernel), each in found.items():
        few, many = each.seconds(2.0**22, each.rows), each.seconds(2.0**27, each.rows)
        print(f"{gpu} {kernel:9} 4 M weights {few[0] * 1e6:6.1f} us, 134 M weights {many[0] * 1e6:6.1f} us at one row")
    pack(found, Path(out), "layers of an engine, measured: vLLM 0.23 on an H100, one model")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
