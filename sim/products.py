"""What matrix products take beyond a smooth maximum of reading their weights and of computing their flops, where that was measured.

A library chooses a kernel for every size of a product, and for some numbers of rows it chooses badly: on the H100 448 rows of an 8B take a
third longer than 432 and than 464 (docs/adr/0021). The choice is the library's own, the same on every card of a kind, and no formula
tells it; so it is a table, times by rows of the products of a layer, each by itself (`python -m hw --suite products`). Every product has a
smooth time, of a bandwidth and a rate of its own; what it takes beyond is told as bytes that could have been read meanwhile. How fast a
product is where its kernel fits is left to the rates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.precision import ACTIVATION_BYTES, Precision
from sim.smooth import smooth_max
from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec

Array = NDArray[np.float64]
PACKAGED = "data/products.npz"
EXPONENT = 3.0  # of the smooth maximum: the formula's own, before anything is learnt
MEASURED_AT = "bf16"
# Up to here all sizes that graphs are captured for were measured, and the next one up stands for those between. Beyond, a number of rows
# that was not measured is taken for the nearest that a tile does not divide either: those that it does may get kernels of their own.
GRAPHS, TILE = 512, 8
# Weights from here on are read at about one bandwidth. Smaller ones seem to be read more slowly, as a product takes some time whatever its
# size, so time is told in bytes at the bandwidth of large ones: that is what the price divides by.
LARGE_BYTES = 1e8


class Product(NamedTuple):
    """One matrix product of a layer: [rows, k] times [k, n], with its bias or without."""

    k: int
    n: int
    bias: bool


class Measured(NamedTuple):
    """A product's times on one GPU: seconds at `rows` [row], the bandwidth and the rate of its smooth time, and the bandwidth at which the
    GPU reads large weights.
    """

    rows: Array
    seconds: Array
    bytes_per_s: float
    flops_per_s: float
    reads_bytes_per_s: float


def smooth_s(product: Product, rows: Any, bytes_per_s: float, flops_per_s: float) -> Any:
    """Seconds of a 16-bit product of so many rows where the choice of kernel does not matter."""
    size = float(product.k) * product.n
    return smooth_max(ACTIVATION_BYTES * size / bytes_per_s, 2.0 * size * rows / flops_per_s, EXPONENT)


class Layer(NamedTuple):
    """A product by its name in a layer - qkv, o, gate_up, down - and how many layers of the model compute it."""

    name: str
    product: Product
    layers: int


def layers_of(model: ModelSpec, tp: int = 1) -> list[Layer]:
    """The products of a model's layers as vLLM fuses them, per GPU of `tp`; routed experts are none. Empty for a model with layers that are
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
        qkv = Product(hidden, (mixer.heads // tp + 2 * kv_heads) * mixer.head_dim, mixer.qkv_bias)
        found.append(Layer("qkv", qkv, group.count))
        found.append(Layer("o", Product(mixer.heads // tp * mixer.head_dim, hidden, mixer.out_bias), group.count))
        if mlp.kind == "dense":
            if mlp.intermediate % tp:
                return []
            found.append(Layer("gate_up", Product(hidden, 2 * mlp.intermediate // tp, mlp.bias), group.count))
            found.append(Layer("down", Product(mlp.intermediate // tp, hidden, mlp.bias), group.count))
        elif mlp.shared_intermediate:
            return []
    return found


def products_of(model: ModelSpec, tp: int = 1) -> list[tuple[Product, int]]:
    """(product, layers that compute it) of `layers_of`."""
    return [(product, layers) for _, product, layers in layers_of(model, tp)]


@lru_cache(maxsize=256)
def choice(model: ModelSpec, precision: Precision, tp: int, gpu: str) -> Array | None:
    """What this model's products take beyond smooth on `gpu`, as bytes that could have been read, by rows from 0 to the last measured; None
    where one of them was not measured.
    """
    known = measured().get(gpu, {}) if precision.weights == MEASURED_AT else {}
    return beyond(products_of(model, tp), known)


def beyond(wanted: Sequence[tuple[Product, int]], known: Mapping[Product, Measured]) -> Array | None:
    """The bytes of `choice` for (product, layers) and what is known of products."""
    if not wanted or any(product not in known for product, _ in wanted):
        return None
    rows = np.arange(min(known[product].rows[-1] for product, _ in wanted) + 1)
    return sum((layers * bytes_beyond(product, known[product], rows) for product, layers in wanted), start=np.zeros(rows.size))


def bytes_beyond(product: Product, seen: Measured, rows: Array) -> Array:
    """What a product takes beyond smooth at every number of rows [row], as bytes that could have been read; none where it takes less."""
    share = np.maximum(seen.seconds / smooth_s(product, seen.rows, seen.bytes_per_s, seen.flops_per_s) - 1.0, 0.0)
    smooth = smooth_s(product, rows, seen.bytes_per_s, seen.flops_per_s)
    out: Array = np.where(rows > 0, share[nearest(seen.rows, rows)] * smooth * seen.reads_bytes_per_s, 0.0)
    return out


def choice_bytes(by_rows: Array | None, rows: Any) -> Any:
    """Those bytes of an iteration of so many rows (a number or an array); 0 where nothing was measured, and for more rows than were."""
    if by_rows is None:
        return 0.0
    last = by_rows.size - 1
    if isinstance(rows, (float, int)):
        return float(by_rows[int(rows)]) if rows <= last else 0.0
    several = np.asarray(rows, dtype=float)
    return np.where(several <= last, by_rows[np.minimum(several, last).astype(np.intp)], 0.0)


def known_to(gpu: GpuSpec) -> str:
    """The name under which products of a GPU would be found: none of a user's own datasheet, whatever name it carries."""
    return gpu.name if gpu.origin == "catalogue" else ""


@cache
def digest() -> str:
    """sha256 of the packaged table, as hex: what is learnt from bills is learnt with it."""
    return hashlib.sha256((files("sim") / PACKAGED).read_bytes()).hexdigest()


@cache
def measured() -> dict[str, dict[Product, Measured]]:
    """Packaged products by GPU."""
    with (files("sim") / PACKAGED).open("rb") as file:
        return read_table(file)


def read_table(file: IO[bytes]) -> dict[str, dict[Product, Measured]]:
    """Products by GPU, from a file of hw.products_pack."""
    with np.load(file, allow_pickle=False) as data:
        columns = {name: data[name] for name in data.files}
    found: dict[str, dict[Product, Measured]] = {}
    for i, gpu in enumerate(columns["gpu"].tolist()):
        product = Product(int(columns["k"][i]), int(columns["n"][i]), bool(columns["bias"][i]))
        seconds = columns["seconds"][i].astype(float)
        ran = np.isfinite(seconds)
        rates = float(columns["bytes_per_s"][i]), float(columns["flops_per_s"][i])
        found.setdefault(gpu, {})[product] = Measured(columns["rows"][ran].astype(float), seconds[ran], *rates, 0.0)
    return {gpu: _read_alike(own) for gpu, own in found.items()}


def _read_alike(own: Mapping[Product, Measured]) -> dict[Product, Measured]:
    large = [seen.bytes_per_s for product, seen in own.items() if ACTIVATION_BYTES * product.k * product.n >= LARGE_BYTES]
    reads = float(np.median(large)) if large else max(seen.bytes_per_s for seen in own.values())
    return {product: seen._replace(reads_bytes_per_s=reads) for product, seen in own.items()}


def nearest(measured_rows: Array, rows: Array) -> NDArray[np.intp]:
    """Which of the measured numbers of rows (ascending) stands for each."""
    exact = np.searchsorted(measured_rows, rows).clip(max=measured_rows.size - 1)
    beyond = np.flatnonzero(measured_rows > GRAPHS)
    whole = beyond[measured_rows[beyond] % TILE > 0]
    if not whole.size:
        return exact
    stand_in = np.union1d(whole, beyond[measured_rows[beyond] > measured_rows[whole[-1]]])
    return np.where((measured_rows[exact] == rows) | (rows <= GRAPHS), exact, stand_in[_closest(measured_rows[stand_in], rows)])


def _closest(values: Array, wanted: Array) -> NDArray[np.intp]:
    above = np.searchsorted(values, wanted).clip(1, values.size - 1)
    out: NDArray[np.intp] = np.where(wanted - values[above - 1] < values[above] - wanted, above - 1, above)
    return out
