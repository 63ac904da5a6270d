"""GEMM efficiency: how long a model's linear layers take over the roofline of their GPU, by number of rows, where that was measured.

A library chooses a kernel for every size, and no formula tells which: on the H100 448 rows of an 8B take a third longer than 432. So it
is a table, times by rows of the GEMMs of a layer (`python -m hw --suite products`). The roofline is a smooth maximum at the
bandwidth and the flop rate of the GPU's fastest GEMM; an engine's own rates differ from them by what its clock does to both.
A GEMM that was not measured is taken for a typical one of its size. Of 8-bit weights no GEMM was measured: above its floor one takes
half as long as in 16 bits, by whole tiles of rows. On a GPU without a table each GEMM costs a floor beside its roofline, GEMM_KERNELS
small kernels (sim.cost.coefficients).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.cost.gemm_surface import KERNEL_BYTES, Surface, surface_of, with_memory
from sim.cost.graphs import GRAPH_TOKENS
from sim.cost.smooth import smooth_max
from sim.files import package_path
from sim.specs.gguf import GGUF, nominal_bytes
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.linear_kernels import linear_kernel
from sim.specs.model import ModelSpec
from sim.specs.precision import ACTIVATION_BYTES, Precision, quantises
from sim.specs.stored import storage_format

Array = NDArray[np.float64]
PACKAGED = "data/products.npz"
MEASURED_AT = "bf16"
HELD_OUT = "held out"  # origin of a GPU as a model that is held out sees it: none of its GEMMs is in the table
# In profiles of engine iterations GEMMs of three models take 1.5 to 2.5 us less than timed alone.
REPLAY_S = 2e-6
# Small kernels: the packaged GEMMs of the H100 take 4.8 us + bytes / 2.93 TB/s at one row, those of the H200 4.9 us + bytes / 4.17 TB/s,
# REPLAY_S of it alone.
GEMM_KERNELS = 1.3
FLOOR_S = 2.8e-6
# Every captured size was measured, and the next one up stands for those between. Beyond, a number of rows that was not measured is taken
# for the nearest that a tile does not divide either: those that it does may get kernels of their own.
TILE = 8
# 8-bit GEMMs compute whole tiles of rows, and a row of padding takes as long as two: docs/log/2026-11-25-rows-of-8-bit-products.md.
EIGHT_BIT_TILE = 256
PADDING = 1.0
KERNELS_ON = "H100"  # where kernels of quantised weights were measured
# Kernels that take as long with faster memory: the linear layers of one stream of an 8B, AWQ by Machete, take 3.06 ms on an H100 (layers
# timed), 2.96 on an H200 (served). Marlin's gain by it.
# llama.cpp's read 1.5 TB/s at one row of an H100, however wide a weight of fewer than 8 bits is, and 2.1 TB/s of q8_0.
NOT_BY_MEMORY = ("machete", "mmq", "mmq-q8_0")
LLAMA_CPP = {name: "mmq" for name in GGUF if nominal_bytes(name) < 1.0} | {"q8_0": "mmq-q8_0"}  # its kernels by type of weights
STAND_INS = {"deep_gemm": "cutlass"}  # a kernel that was not measured, and one of the same format that was
SIMILAR_LOG_SIZE = 0.5  # of the logarithm of a GEMM's weights: within a factor of about 1.6 others tell of it


class Gemm(NamedTuple):
    """One GEMM of a layer: [rows, k] times [k, n], with its bias or without."""

    k: int
    n: int
    bias: bool


@dataclass(frozen=True, eq=False, slots=True)
class Measured:
    """Seconds of a GEMM on one GPU at `rows` [row], ascending."""

    rows: Array
    seconds: Array


class Layer(NamedTuple):
    """A GEMM by its name in a layer - qkv, o, gate_up, down - and how many layers of the model compute it."""

    name: str
    gemm: Gemm
    layers: int


class Roofline(NamedTuple):
    """Bandwidth and flop rate of the fastest GEMM measured on a GPU."""

    bytes_per_s: float
    flops_per_s: float


def layers_of(model: ModelSpec, tp: int = 1) -> list[Layer]:
    """The GEMMs of a model's layers as vLLM fuses them, per GPU of `tp`; routed experts are none. Empty for a model with layers that are
    put together otherwise, and for one that engines do not split over so many GPUs.

    KV heads that are fewer than GPUs are held several times. A bias of a sum over GPUs is added by the first of them: that one's.
    """
    found: list[Layer] = []
    for group in model.groups:
        mixer, mlp, hidden = group.mixer, group.mlp, model.hidden
        if mixer.kind != "attention" or mixer.output_gate:
            return []
        if mixer.heads % tp or (mixer.kv_heads % tp and tp % mixer.kv_heads):
            return []
        kv_heads = max(mixer.kv_heads // tp, 1)
        qkv = Gemm(hidden, (mixer.heads // tp + 2 * kv_heads) * mixer.head_dim, mixer.qkv_bias)
        found.append(Layer("qkv", qkv, group.count))
        found.append(Layer("o", Gemm(mixer.heads // tp * mixer.head_dim, hidden, mixer.out_bias), group.count))
        if mlp.kind == "none" or not mlp.gated or mixer.value_dim or mixer.value_is_key or not mixer.kv_kept:
            return []
        if mlp.kind == "dense":
            if mlp.intermediate % tp:
                return []
            found.append(Layer("gate_up", Gemm(hidden, 2 * mlp.intermediate // tp, mlp.bias), group.count))
            found.append(Layer("down", Gemm(mlp.intermediate // tp, hidden, mlp.bias), group.count))
        elif mlp.shared_intermediate:
            return []
    return found


def gemms_of(model: ModelSpec, tp: int = 1) -> list[tuple[Gemm, int]]:
    """(gemm, layers that compute it) of `layers_of`."""
    return [(gemm, layers) for _, gemm, layers in layers_of(model, tp)]


def over_roofline(model: ModelSpec, precision: Precision, tp: int, gpu: GpuSpec | None) -> Array | None:
    """Time of the model's linear layers over their roofline, by rows from 0 to the last measured: of its own GEMMs as far as they were
    measured on `gpu` or its chip, else of typical ones of their size. None on a GPU without a table, for weights that are computed in
    another dtype than their own, and for layers that are put together otherwise.
    """
    wanted = gemms_of(model, tp)
    own = quantised_gemm_surface(model, precision, gpu)
    return surface_over_roofline(wanted, own) if own and wanted else gemms_over_roofline(wanted, precision, gpu)


def quantised_gemm_surface(model: ModelSpec, precision: Precision, gpu: GpuSpec | None) -> Surface | None:
    """The surface of kernels of quantised weights, whatever they do to activations included; None where none was measured.

    On a chip that was measured with other memory, kernels take as many seconds beyond their roofline as they do there.
    """
    kernel = LLAMA_CPP.get(precision.weights) or precision.kernel or linear_kernel(storage_format(model, precision), gpu)
    return None if gpu is None else kernel_surface(STAND_INS.get(kernel, kernel), gpu)


def chip_of(gpu: GpuSpec | None, precision: Precision, own_kernels: bool) -> GpuSpec | None:
    """The GPU by whose measured kernels a step is priced: none for an engine with kernels of its own, but where those were measured."""
    known = gpu is not None and kernel_surface(LLAMA_CPP.get(precision.weights, ""), gpu) is not None
    return gpu if known or not own_kernels else None


def kernel_surface(kernel: str, gpu: GpuSpec) -> Surface | None:
    """The surface of one kernel on a GPU or its chip; None where it was not measured."""
    if kernel not in KERNEL_BYTES:
        return None
    own, sibling = surface_of(gpu, kernel), get_gpu(KERNELS_ON)
    there, here = surface_of(sibling, kernel), measured().get(gpu.name)
    if own or there is None or here is None or sibling.flops != gpu.flops:
        return own
    return with_memory(there, roofline(here).bytes_per_s, gains=kernel not in NOT_BY_MEMORY)


def gemms_over_roofline(wanted: Sequence[tuple[Gemm, int]], precision: Precision, gpu: GpuSpec | None) -> Array | None:
    """`over_roofline` of (gemm, layers); None for none of them."""
    if gpu is None or not wanted:
        return None
    eight_bits, of_chip = quantises(precision.weights, gpu), gemms_on(gpu)
    width = precision.weight_bytes / ACTIVATION_BYTES if eight_bits else 1.0
    if of_chip is not None and (eight_bits or precision.weights == MEASURED_AT):
        known = of_chip
        if gpu.origin == HELD_OUT:
            known = {gemm: seen for gemm, seen in known.items() if gemm not in dict(wanted)}
        return sum_over_roofline(wanted, known, roofline(of_chip), width)
    surface = surface_of(gpu, MEASURED_AT if eight_bits else precision.weights)
    return surface_over_roofline(wanted, surface, width) if surface else None


def surface_over_roofline(wanted: Sequence[tuple[Gemm, int]], surface: Surface, width: float = 1.0) -> Array:
    """`over_roofline` of (gemm, layers) by a GPU's surface of typical GEMMs; `width` is that of a weight over the surface's."""
    rows = np.arange(1.0, surface.rows[-1] + 1.0)
    return _over(wanted, lambda p: surface.seconds(float(p.k * p.n), rows), surface.roofline_s, rows, width)


def gemms_on(gpu: GpuSpec) -> dict[Gemm, Measured] | None:
    """The packaged GEMMs of a GPU, else of its chip; None where neither was measured. A user's own datasheet is no GPU we measured."""
    own = measured().get(gpu.name) if gpu.origin in ("catalogue", HELD_OUT) else None
    return own or measured().get(gpu.sibling_of)


def sum_over_roofline(wanted: Sequence[tuple[Gemm, int]], known: Mapping[Gemm, Measured], best: Roofline, width: float = 1.0) -> Array:
    """`over_roofline` of (gemm, layers) and what is known of GEMMs; `width` is that of a weight, in 16 bits."""
    rows = np.arange(1.0, min(seen.rows[-1] for seen in known.values()) + 1.0)

    def seconds(gemm: Gemm) -> Array:
        return by_rows(known[gemm], rows) if gemm in known else typical_s(gemm, known, best, rows)

    return _over(wanted, seconds, lambda weights, rows: smooth_s(weights, rows, best), rows, width)


def _over(
    wanted: Sequence[tuple[Gemm, int]],
    seconds: Callable[[Gemm], Array],
    roofline_s: Callable[[float, Array], Any],
    rows: Array,
    width: float,
) -> Array:
    """Seconds of (gemm, layers) [row] over the roofline, weights of `width`; 1 for no rows."""
    whole = in_tiles(rows) if width < 1.0 else rows
    each = sum(layers * seconds(p)[whole.astype(int) - 1] for p, layers in wanted)
    weights = float(sum(layers * p.k * p.n for p, layers in wanted))
    floor_s = FLOOR_S * sum(layers for _, layers in wanted)
    total = floor_s + (each - floor_s) * width * (1.0 + PADDING * (1.0 - rows / whole)) if width < 1.0 else each
    return np.concatenate([[1.0], total / (roofline_s(weights, rows) * width)])


def in_tiles(rows: Array) -> Array:
    """Rows that an 8-bit GEMM computes, of ascending `rows`: beyond the first tile, whole tiles."""
    whole: Array = np.where(rows <= EIGHT_BIT_TILE, rows, np.ceil(rows / EIGHT_BIT_TILE) * EIGHT_BIT_TILE)
    return whole.clip(max=rows[-1])


def typical_s(gemm: Gemm, known: Mapping[Gemm, Measured], best: Roofline, rows: Array) -> Array:
    """Seconds of a GEMM that was not measured, at 1, 2, 3, ... `rows`: its roofline times the geometric mean of how far those of about
    its size are over theirs, as a time that never falls when a row is added.
    """
    log_sizes, over = _all_over_roofline(tuple(known.items()), best, rows.size)
    weights = np.exp(-0.5 * np.square((log_sizes - np.log(float(gemm.k * gemm.n))) / SIMILAR_LOG_SIZE))
    mean = np.exp(weights @ over / weights.sum())
    out: Array = np.maximum.accumulate(mean * smooth_s(float(gemm.k * gemm.n), rows, best))
    return out


@lru_cache(maxsize=8)
def _all_over_roofline(known: tuple[tuple[Gemm, Measured], ...], best: Roofline, most: int) -> tuple[Array, Array]:
    """Log weights [gemm], and log of seconds over roofline [gemm, rows from 1 to `most`]."""
    rows = np.arange(1.0, most + 1.0)
    over = [by_rows(seen, rows) / smooth_s(float(p.k * p.n), rows, best) for p, seen in known]
    return np.log([float(p.k * p.n) for p, _ in known]), np.log(over)


def smooth_s(weights: float, rows: Array, best: Roofline) -> Any:
    """Roofline seconds of 16-bit GEMMs of so many weights, together."""
    return smooth_max(ACTIVATION_BYTES * weights / best.bytes_per_s, 2.0 * weights * rows / best.flops_per_s)


def by_rows(seen: Measured, rows: Array) -> Array:
    """Seconds of a measured GEMM at numbers of rows."""
    out: Array = in_engine_s(seen)[nearest(seen.rows, rows)]
    return out


def roofline(known: Mapping[Gemm, Measured]) -> Roofline:
    """The fastest GEMM's bandwidth at its fewest rows, and flop rate at any."""
    return Roofline(
        max(ACTIVATION_BYTES * p.k * p.n / in_engine_s(seen)[0] for p, seen in known.items()),
        max(float((2.0 * p.k * p.n * seen.rows / in_engine_s(seen)).max()) for p, seen in known.items()),
    )


def in_engine_s(seen: Measured) -> Array:
    """Seconds of a GEMM among other kernels of a CUDA graph: without what a replay of it alone takes to start and to end."""
    return seen.seconds - REPLAY_S


@cache
def digest() -> str:
    """sha256 of the packaged table, as hex: rates are learnt with it."""
    return hashlib.sha256(package_path("sim", PACKAGED).read_bytes()).hexdigest()


@cache
def measured() -> dict[str, dict[Gemm, Measured]]:
    """Packaged GEMMs by GPU."""
    with package_path("sim", PACKAGED).open("rb") as file:
        return read_table(file)


def read_table(file: IO[bytes]) -> dict[str, dict[Gemm, Measured]]:
    """GEMM times by GPU, from a file of `python -m studies.measured_gemms`."""
    with np.load(file, allow_pickle=False) as data:
        columns = {name: data[name] for name in data.files}
    found: dict[str, dict[Gemm, Measured]] = {}
    for i, gpu in enumerate(columns["gpu"].tolist()):
        seconds = columns["seconds"][i].astype(float)
        ran = np.isfinite(seconds)
        gemm = Gemm(int(columns["k"][i]), int(columns["n"][i]), bool(columns["bias"][i]))
        found.setdefault(gpu, {})[gemm] = Measured(columns["rows"][ran].astype(float), seconds[ran])
    return found


def nearest(measured_rows: Array, rows: Array) -> NDArray[np.intp]:
    """Nearest of the measured numbers of rows (ascending) for each."""
    exact = np.searchsorted(measured_rows, rows).clip(max=measured_rows.size - 1)
    beyond = np.flatnonzero(measured_rows > GRAPH_TOKENS)
    longer = measured_rows[beyond]
    whole = longer % TILE > 0
    if not whole.any():
        return exact
    substitutes = beyond[whole | (longer > longer[whole][-1])]
    return np.where((measured_rows[exact] == rows) | (rows <= GRAPH_TOKENS), exact, substitutes[_closest(measured_rows[substitutes], rows)])


def _closest(values: Array, wanted: Array) -> NDArray[np.intp]:
    above = np.searchsorted(values, wanted).clip(1, values.size - 1)
    out: NDArray[np.intp] = np.where(wanted - values[above - 1] < values[above] - wanted, above - 1, above)
    return out


def at_rows(by_rows: Array | None, rows: Any) -> Any:
    """The table's value at so many rows (a number or an array), its last for more; 1 where nothing was measured."""
    if by_rows is None:
        return 1.0
    last = by_rows.size - 1
    if isinstance(rows, (float, int)):
        return float(by_rows[int(rows) if rows < last else last])
    return by_rows[np.minimum(np.asarray(rows, dtype=float), last).astype(np.intp)]
