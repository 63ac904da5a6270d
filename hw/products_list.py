"""`python -m hw.products_list -o FILE`: matrix products of catalogue models, whole or over several GPUs, for suite `products` to measure.

It runs where the catalogue can be read; `python3 -m hw --hw cuda --suite products --products FILE` needs none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hw.exits import call
from hw.products_file import read_products, write_products
from hw.suites.products import LEAST_PASSES, Product, described, pass_s, points_of
from sim.errors import UsageError
from sim.products import known_to, layers_of, measured

if TYPE_CHECKING:
    from sim.specs.gpu import GpuSpec
    from sim.specs.model import ModelSpec

DTYPE, MOST_GPUS = "bfloat16", 64


def uses_of(models: Sequence[ModelSpec], tps: Sequence[int], fits: GpuSpec | None, unmeasured: GpuSpec | None) -> dict[Product, str]:
    """Every product of these models once and whose it is, by how many GPUs they are split over: "Qwen3-32B qkv", "Qwen3-32B/tp2 qkv".

    With `fits` only of models whose weights, split so, that GPU holds; with `unmeasured` none that the packaged table has of that GPU.
    """
    known = measured().get(known_to(unmeasured), {}) if unmeasured else {}
    found: dict[Product, list[str]] = {}
    for tp in tps:
        for model in models:
            if fits and model.resident_bytes(2.0) / tp > fits.memory_bytes:
                continue
            of = model.name + (f"/tp{tp}" if tp > 1 else "")
            for layer in layers_of(model, tp):
                uses = found.setdefault(Product(*layer.product, DTYPE), []) if layer.product not in known else []
                if (use := f"{of} {layer.name}") not in uses:  # windowed layers are a group of their own
                    uses.append(use)
    return {product: ", ".join(uses) for product, uses in found.items()}


def within(uses: dict[Product, str], most_s: float) -> dict[Product, str]:
    """The products, from the first on, that LEAST_PASSES take so many seconds of by the roofline of the suite."""
    kept: dict[Product, str] = {}
    spent = 0.0
    for product, layers in uses.items():
        spent += LEAST_PASSES * pass_s(points_of([product], "cuda"))
        if spent > most_s:
            break
        kept[product] = layers
    return kept


@click.command("products_list", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", "models", default="all", show_default=True, help="Models of the catalogue, comma-separated, or all.")
@click.option("--tp", "tps", default="1", show_default=True, help="Numbers of GPUs that they are split over, comma-separated.")
@click.option("--least-params", type=click.FloatRange(min=0), default=0.0, help="Only models of so many billions of parameters and more.")
@click.option("--most-params", type=click.FloatRange(min=0), default=None, help="Only models of so many billions and less.")
@click.option("--fits", default=None, help="Only where this GPU holds the weights, split so.")
@click.option("--unmeasured", default=None, help="Only products that the packaged table does not have of this GPU.")
@click.option(
    "--without", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="None of this list; may be repeated."
)
@click.option(
    "--most-s", type=click.FloatRange(min=1), default=None, help="Leave out the last ones, until it takes about so long on a GPU."
)
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The list, CSV.")
def command(
    models: str,
    tps: str,
    least_params: float,
    most_params: float | None,
    fits: str | None,
    unmeasured: str | None,
    without: tuple[Path, ...],
    most_s: float | None,
    out: Path,
) -> None:
    """List the matrix products of catalogue models, for `--suite products --products FILE`.

    Products are those of a layer as vLLM fuses them, bfloat16; those of models split over fewer GPUs come first. A model whose
    layers are put together otherwise (latent or linear attention, shared experts) has none, nor one that does not split so.
    """
    from sim.specs.gpus import get_gpu  # a bare host, which measures, need not have what reads the catalogue
    from sim.specs.models import get_model, list_models

    names = list_models() if models.strip() == "all" else _parts(models)
    most = float("inf") if most_params is None else most_params
    specs = [spec for spec in map(get_model, names) if least_params <= spec.params / 1e9 <= most]
    wanted = gpus_of(tps)
    if not specs:
        raise UsageError("no model of that size")
    uses = uses_of(specs, wanted, get_gpu(fits) if fits else None, get_gpu(unmeasured) if unmeasured else None)
    for path in without:
        for product in read_products(path):
            uses.pop(product, None)
    if most_s is not None:
        uses = within(uses, most_s)
    if not uses:
        raise UsageError("no product is left to list")
    write_products(out, uses)
    click.echo(f"{out}: {described(points_of(uses, 'cuda'))}")


def _parts(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def gpus_of(text: str) -> list[int]:
    """Numbers of GPUs from "1,2,4", ascending. Raises UsageError for text that is none."""
    parts = _parts(text)
    if not parts or not all(part.isascii() and part.isdigit() and 1 <= int(part) <= MOST_GPUS for part in parts):
        raise UsageError(f"--tp wants numbers of GPUs from 1 to {MOST_GPUS}, comma-separated, not {text!r}")
    return sorted({int(part) for part in parts})


def main() -> None:
    """Run the command."""
    call(command, "python -m hw.products_list")


if __name__ == "__main__":
    main()
