"""GEMM efficiency by size and rows: time over the roofline of typical GEMMs, on GPUs and in dtypes that kernel tables show.

    seconds(k, n, rows) = smooth_max(bytes / B, flops / F) * over[size, rows]

`over` is a median over shapes of about that many weights (k n), whatever their ratio. B and F are the fastest 16-bit product's, F
times what the datasheet says of the dtype: as rates of one dtype are scaled to another. Learnt from published tables of vLLM's kernels, one
run on one machine each (`python -m studies.kernel_tables.gemm_fit`); of quantised weights from layers of a loaded engine (`python -m
studies.kernel_tables.quantised_fit`), of llama.cpp's types from whole steps (`python -m studies.llamacpp_steps`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from sim.cost.smooth import smooth_max
from sim.files import package_path
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import spare_power
from sim.specs.precision import DTYPE_BYTES

Array = NDArray[np.float64]
PACKAGED = ("data/gemm_surfaces.npz", "data/kernel_surfaces.npz")
# Bytes of a weight by kernel of quantised weights as it was measured: scales of groups of 128, for Marlin zero points, too (AWQ); blocks of
# fp8 of 128 by 128; for llama.cpp's, q4_k_m and q8_0.
KERNEL_BYTES = {
    "machete": 4.125 / 8, "marlin": 4.15625 / 8, "cutlass": 1.0 + 4.0 / 128**2, "mmq": 4.9 / 8, "mmq-q8_0": 8.5 / 8,
}  # fmt: skip
BY_TABLES = "kernel tables"  # origin of a GPU as if it were known by kernel tables alone


@dataclass(frozen=True, eq=False, slots=True)
class Surface:
    """Log of seconds over the roofline [size, row] at log2 weights `sizes` and `rows`, ascending, and that roofline."""

    sizes: Array
    rows: Array
    log_over: Array
    bytes_per_s: float
    flops_per_s: float
    width: float  # bytes of a weight

    def seconds(self, weights: float, rows: Array) -> Array:
        """Seconds of one GEMM of so many weights at numbers of rows, never falling when a row is added."""
        out: Array = np.maximum.accumulate(np.exp(self._log_over(weights, rows)) * self.roofline_s(weights, rows))
        return out

    def roofline_s(self, weights: Any, rows: Array) -> Any:
        """Roofline seconds of GEMMs of so many weights."""
        return smooth_max(weights * self.width / self.bytes_per_s, 2.0 * weights * rows / self.flops_per_s)

    def _log_over(self, weights: float, rows: Array) -> Array:
        place = np.interp(np.log2(weights), self.sizes, np.arange(self.sizes.size))
        low = int(min(place, self.sizes.size - 2))
        mixed = self.log_over[low] + (place - low) * (self.log_over[low + 1] - self.log_over[low])
        return np.asarray(np.interp(np.log(rows), np.log(self.rows), mixed), dtype=float)


def surface_of(gpu: GpuSpec, dtype: str) -> Surface | None:
    """The surface of a GPU or its chip for weights of a dtype; None where no table shows it."""
    known = packaged()
    own = known.get((gpu.name, dtype)) if gpu.origin in ("catalogue", BY_TABLES) else None
    of_chip = known.get((gpu.sibling_of, dtype))
    return own or (unthrottled(of_chip, spare_power(gpu)) if of_chip else None)


def unthrottled(surface: Surface, spare: float) -> Surface:
    """A surface on a card of the same chip with `spare` times the power per flop: where flops bind, a GEMM does not take longer over its
    roofline at many rows than it took at fewer, as far as power was what made it.
    """
    first = int(np.searchsorted(surface.rows, surface.width / 2.0 * surface.flops_per_s / surface.bytes_per_s))  # from here on flops bind
    if spare <= 1.0 or first >= surface.rows.size:
        return surface
    over = surface.log_over.copy()
    best = np.minimum.accumulate(over[:, first:], axis=1)
    over[:, first:] = np.maximum(best, over[:, first:] - np.log(spare))
    return replace(surface, log_over=over)


def with_memory(surface: Surface, bytes_per_s: float, gains: bool = True) -> Surface:
    """A surface on the same chip with memory of another bandwidth: as many seconds beyond the roofline, or in all where a kernel does not
    gain by it.
    """
    there, weights = surface, np.exp2(surface.sizes)[:, None]
    here = replace(there, bytes_per_s=bytes_per_s)
    if not gains:
        return replace(here, log_over=there.log_over + np.log(there.roofline_s(weights, there.rows) / here.roofline_s(weights, there.rows)))
    beyond = np.expm1(there.log_over) * there.roofline_s(weights, there.rows)
    return replace(here, log_over=np.log1p(np.maximum(beyond, 0.0) / here.roofline_s(weights, there.rows)))


@cache
def packaged() -> dict[tuple[str, str], Surface]:
    """Packaged surfaces by GPU and dtype."""
    found: dict[tuple[str, str], Surface] = {}
    for name in PACKAGED:
        with package_path("sim", name).open("rb") as file:
            found |= read_surfaces(file)
    return found


def read_surfaces(file: IO[bytes]) -> dict[tuple[str, str], Surface]:
    """Surfaces from a file of `python -m studies.kernel_tables.gemm_fit`."""
    with np.load(file, allow_pickle=False) as data:
        columns = {name: data[name] for name in data.files}
    sizes, rows = columns["sizes"].astype(float), columns["rows"].astype(float)
    found = {}
    for gpu, dtype, over, rate, flops in zip(
        *(columns[name].tolist() for name in ("gpu", "dtype")),
        columns["log_over"],
        columns["bytes_per_s"],
        columns["flops_per_s"],
        strict=True,
    ):
        found[gpu, dtype] = Surface(sizes, rows, over.astype(float), float(rate), float(flops), (DTYPE_BYTES | KERNEL_BYTES)[dtype])
    return found
