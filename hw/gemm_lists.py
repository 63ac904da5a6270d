"""`python -m hw.gemm_lists`: lists of GEMMs for the suite `products` to measure."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from hw.exits import call
from sim.cost import gemm
from sim.errors import UsageError
from sim.files import write_text
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.model import ModelSpec
from sim.specs.models import get_model, list_models

COLUMNS = ("k", "n", "bias", "dtype", "layers")
DTYPE, DTYPES = "bfloat16", ("bfloat16", "float32")
MOST_GEMMS, MOST_SIDE, MOST_BYTES = 2000, 1 << 20, 1 << 22


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
    return {listed: ", ".join(uses) for listed, uses in found.items()}


def models_of(uses: Iterable[str]) -> list[str]:
    """Models named in texts like "a qkv, b qkv", each once."""
    return list(dict.fromkeys(use.rsplit(" ", 1)[0] for text in uses for use in text.split(", ")))


def written(uses: Mapping[ListedGemm, str]) -> str:
    """Products and whose they are, as CSV."""
    quoted = {listed: f'"{layers}"' if "," in layers else layers for listed, layers in uses.items()}
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
            listed, layers = _gemm_of(where, [field.strip() for field in row])
            if listed in found:
                raise UsageError(f"{where}: this product stands above already")
            found[listed] = layers
    if not 1 <= len(found) <= MOST_GEMMS:
        raise UsageError(f"{path.name}: holds {len(found) or 'no'} products; {MOST_GEMMS} at most")
    return found


def _gemm_of(where: str, row: list[str]) -> tuple[ListedGemm, str]:
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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """GEMMs of catalogue models, for the suite `products`."""


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
    specs = [get_model(name.strip()) for name in (list_models() if models == "all" else models.split(","))]
    if not all(tp.strip().isdecimal() and 1 <= int(tp) <= 64 for tp in tps.split(",")):
        raise UsageError(f"--tp wants numbers of GPUs from 1 to 64, comma-separated, not {tps!r}")
    uses = uses_of(specs, sorted({int(tp) for tp in tps.split(",")}), get_gpu(fits) if fits else None)
    if not uses:
        raise UsageError("no product is left to list")
    write_text(out, written(uses))
    click.echo(f"{out}: {len(uses)} products")


if __name__ == "__main__":
    call(command, "python -m hw.gemm_lists")
