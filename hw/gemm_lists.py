"""`python -m hw.gemm_lists`: lists of GEMMs for the suite `products` to measure, and the packaged table of what it measured."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from hw.artifact import load
from hw.exits import call
from sim.cost import gemm
from sim.errors import UsageError
from sim.files import replacing, write_text

if TYPE_CHECKING:
    from sim.specs.gpu import GpuSpec
    from sim.specs.model import ModelSpec

Array = NDArray[np.float64]
COLUMNS = ("k", "n", "bias", "dtype", "layers")
DTYPE, DTYPES = "bfloat16", ("bfloat16", "float32")
MOST_PRODUCTS, MOST_SIDE, MOST_BYTES = 2000, 1 << 20, 1 << 22
LEAST_ROWS = 40  # numbers of rows that a GEMM must have been measured at: few tell nothing of those between


class ListedGemm(NamedTuple):
    """One GEMM: [rows, k] times [k, n]."""

    k: int
    n: int
    bias: bool
    dtype: str


def uses_of(models: Sequence[ModelSpec], tps: Sequence[int], fits: GpuSpec | None) -> dict[ListedGemm, str]:
    """Every GEMM of these models once and whose it is, by how many GPUs they are split over: "Qwen3-32B qkv", "Qwen3-32B/tp2 qkv".

    With `fits` only of models whose weights, split so, that GPU holds.
    """
    found: dict[ListedGemm, list[str]] = {}
    for tp in tps:
        for model in models:
            if fits and model.resident_bytes(2.0) / tp > fits.memory_bytes:
                continue
            of = model.name + (f"/tp{tp}" if tp > 1 else "")
            for layer in gemm.layers_of(model, tp):
                uses = found.setdefault(ListedGemm(*layer.gemm, DTYPE), [])
                if (use := f"{of} {layer.name}") not in uses:  # windowed layers are a group of their own
                    uses.append(use)
    return {product: ", ".join(uses) for product, uses in found.items()}


def models_of(uses: Iterable[str]) -> list[str]:
    """Models named in texts like "a qkv, b qkv", each once."""
    return list(dict.fromkeys(use.rsplit(" ", 1)[0] for text in uses for use in text.split(", ")))


def written(uses: Mapping[ListedGemm, str]) -> str:
    """Products and whose they are, as CSV."""
    quoted = {product: f'"{layers}"' if "," in layers else layers for product, layers in uses.items()}
    return "\n".join([",".join(COLUMNS), *(f"{p.k},{p.n},{int(p.bias)},{p.dtype},{q}" for p, q in quoted.items()), ""])


def read_gemms(path: Path) -> dict[ListedGemm, str]:
    """Products of a file and whose they are, in its order. Raises UsageError naming the file and the line at fault."""
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(f"{path.name}: larger than {MOST_BYTES} bytes: not a list of products")
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines(), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path.name}: not CSV ({error})") from None
    if not rows or tuple(name.strip() for name in rows[0]) != COLUMNS:
        raise UsageError(f"{path.name}: not a list of products (its first line must be {','.join(COLUMNS)})")
    found: dict[ListedGemm, str] = {}
    for number, row in enumerate(rows[1:], start=2):
        if row:
            where = f"{path.name}: line {number}"
            product, layers = _product(where, [field.strip() for field in row])
            if product in found:
                raise UsageError(f"{where}: this product stands above already")
            found[product] = layers
    if not 1 <= len(found) <= MOST_PRODUCTS:
        raise UsageError(f"{path.name}: holds {len(found) or 'no'} products; {MOST_PRODUCTS} at most")
    return found


def _product(where: str, row: list[str]) -> tuple[ListedGemm, str]:
    if len(row) != len(COLUMNS):
        raise UsageError(f"{where}: has {len(row)} fields, not {len(COLUMNS)}")
    k, n, bias, dtype, layers = row
    for name, text in (("k", k), ("n", n)):
        if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MOST_SIDE):
            raise UsageError(f"{where}: {name}: needs a whole number from 1 to {MOST_SIDE}, not {text!r}")
    if bias not in ("0", "1"):
        raise UsageError(f"{where}: bias: needs 0 or 1, not {bias!r}")
    if dtype not in DTYPES:
        raise UsageError(f"{where}: dtype: needs {' or '.join(DTYPES)}, not {dtype!r}")
    if not layers or not all(len(use.rsplit(" ", 1)) == 2 for use in layers.split(", ")):
        raise UsageError(f"{where}: layers: needs MODEL LAYER, several after commas, not {layers!r}")
    return ListedGemm(int(k), int(n), bias == "1", dtype), layers


def packed(files: Sequence[Path]) -> dict[str, Any]:
    """The arrays of the packaged table (sim.cost.gemm), from files of the suite. Raises UsageError, naming the file, for one that is none.

    Files of one GPU are taken together: a point's time is the geometric mean of what they say. Products of other element types than
    bfloat16 are left out, and those that were hardly measured.
    """
    from sim.specs.gpus import get_gpu  # a bare host, which measures, need not have what reads the catalogue

    logs: dict[str, dict[tuple[gemm.Gemm, int], list[float]]] = {}
    for path in files:
        data = load(path, "products")
        own = logs.setdefault(get_gpu(str(data.attrs["gpu_name"])).name, {})
        timed = data.isel(point=np.isfinite(data.time_s.values).any(axis=1) & (data["dtype"].values == DTYPE))
        medians = np.nanmedian(timed.time_s.values.astype(np.float64), axis=1)  # time_s_median is rounded
        columns = [timed[name].values.tolist() for name in ("k", "n", "bias", "rows")]
        for k, n, bias, rows, seconds in zip(*columns, medians.tolist(), strict=True):
            if seconds > 0:
                own.setdefault((gemm.Gemm(k, n, bool(bias)), rows), []).append(float(np.log(seconds)))
    for gpu, own in logs.items():
        seen = Counter(product for product, _ in own)
        logs[gpu] = {key: values for key, values in own.items() if seen[key[0]] >= LEAST_ROWS}
    rows = sorted({rows for own in logs.values() for _, rows in own})
    names = sorted({(gpu, product) for gpu, own in logs.items() for product, _ in own})
    if not names:
        raise UsageError(f"no {DTYPE} products were measured in these files")
    found = [[logs[gpu].get((product, r), [np.nan]) for r in rows] for gpu, product in names]
    seconds = np.exp([[np.mean(times) for times in row] for row in found])
    return {
        "gpu": np.array([gpu for gpu, _ in names]),
        "k": np.array([product.k for _, product in names], dtype=np.int32),
        "n": np.array([product.n for _, product in names], dtype=np.int32),
        "bias": np.array([product.bias for _, product in names], dtype=bool),
        "rows": np.array(rows, dtype=np.int32),
        "seconds": seconds.astype(np.float32),
    }


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """GEMMs: list those of catalogue models to measure, pack what was measured."""


@command.command("list")
@click.option("--model", "models", default="all", show_default=True, help="Models of the catalogue, comma-separated, or all.")
@click.option("--tp", "tps", default="1", show_default=True, help="Numbers of GPUs that they are split over, comma-separated.")
@click.option("--fits", default=None, help="Only where this GPU holds the weights, split so.")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The list, CSV.")
def listing(models: str, tps: str, fits: str | None, out: Path) -> None:
    """List the GEMMs of catalogue models, for `--suite products --products FILE` on a host without the catalogue.

    Products are those of a layer as vLLM fuses them, bfloat16. A model whose layers are put together otherwise (latent or linear
    attention, shared experts) has none, nor one that does not split so.
    """
    from sim.specs.gpus import get_gpu
    from sim.specs.models import get_model, list_models

    specs = [get_model(name.strip()) for name in (list_models() if models == "all" else models.split(","))]
    if not all(tp.strip().isdecimal() and 1 <= int(tp) <= 64 for tp in tps.split(",")):
        raise UsageError(f"--tp wants numbers of GPUs from 1 to 64, comma-separated, not {tps!r}")
    uses = uses_of(specs, sorted({int(tp) for tp in tps.split(",")}), get_gpu(fits) if fits else None)
    if not uses:
        raise UsageError("no product is left to list")
    write_text(out, written(uses))
    click.echo(f"{out}: {len(uses)} products")


@command.command("pack")
@click.argument("root", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
def pack(root: Path, out: Path) -> None:
    """Write the table of measured GEMMs to OUT (.npz), from all */products*.nc below ROOT."""
    arrays = packed(sorted(root.glob("*/products*.nc")))
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    click.echo(f"{arrays['seconds'].shape[0]} products at {arrays['rows'].size} numbers of rows: {out}")


if __name__ == "__main__":
    call(command, "python -m hw.gemm_lists")
