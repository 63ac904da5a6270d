"""`python -m hw.products_table FILE`: which rows take an iteration's matrix products longest, from a file of the suite products.

Of a list of products (`hw.products_list`) a line each is shown, and with `--model` the iterations of one of its models.

What a size should take is a smooth maximum of reading the weight and of computing its flops, (a**p + b**p)**(1/p), with one bandwidth,
one rate and one exponent for all products of the file; what a product takes beyond is the choice of its kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from hw.engines.shapes import SHAPES, shape
from hw.exits import call
from hw.products_file import models_of
from hw.profile_table import aligned, opened
from sim.errors import UsageError
from sim.products import EXPONENT
from sim.smooth import smooth_max

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
EXPONENTS = tuple(np.arange(1.0, 16.01, 0.25).tolist())
ITEM_BYTES = {"float32": 4}  # others have two
SPLIT, WIDTH = re.compile(r"/tp\d+$"), 80
ROUNDS = 30  # of reweighting, towards least absolute errors


class Smooth(NamedTuple):
    """What a product takes where the library's choice does not matter."""

    bytes_per_s: float
    flops_per_s: float
    exponent: float

    def seconds(self, weight_bytes: Array, flops: Array) -> Array:
        found: Array = smooth_max(weight_bytes / self.bytes_per_s, flops / self.flops_per_s, self.exponent)
        return found


def fit(weight_bytes: Array, flops: Array, seconds: Array, exponents: Iterable[float] = EXPONENTS) -> Smooth:
    """The rates and the exponent with the least mean absolute error of the logarithm. Raises UsageError for fewer than three points."""
    if len(seconds) < 3:
        raise UsageError("three measured points are the least to tell a bandwidth, a rate and an exponent")
    best, least = None, np.inf
    for p in exponents:
        sides = np.stack([(weight_bytes / seconds) ** p, (flops / seconds) ** p], axis=1)
        scale = sides.max(axis=0)  # powers of large numbers
        sides, weight = sides / scale, np.ones(len(seconds))
        for _ in range(ROUNDS):
            shares = np.linalg.lstsq(sides * weight[:, None], weight, rcond=None)[0]
            weight = np.maximum(np.abs(sides @ shares - 1.0), 1e-6) ** -0.5
        if (shares > 0).all():
            found = Smooth(*((scale / shares) ** (1.0 / p)).tolist(), float(p))
            error = float(np.abs(np.log(seconds / found.seconds(weight_bytes, flops))).mean())
            best, least = (found, error) if error < least else (best, least)
    if best is None:
        raise UsageError("no bandwidth and rate above zero describe these points: are rows both few and many?")
    return best


class Layer(NamedTuple):
    """One product of a model: its name, and by rows what all layers take (s), what they should, and the kernels."""

    name: str
    rows: Array
    seconds: Array
    smooth: Array
    kernels: list[str]


def layers_of(data: xr.Dataset, model: str, smooth: Smooth) -> list[Layer]:
    """The model's products of a file, times its number of layers. Raises UsageError, naming the models there, when it has none."""
    uses = [[tuple(use.rsplit(" ", 1)) for use in text.split(", ")] for text in data.layers.values.astype(str)]
    names = list(dict.fromkeys(layer for use in uses for name, layer in use if name == model))
    if not names:
        raise UsageError(f"no products of {model!r} here; of {', '.join(sorted({name for use in uses for name, _ in use}))}")
    times, count = data.time_s_median.values, depth(model)
    should = smooth.seconds(*work_of(data))
    found = []
    for name in names:
        at = [i for i, use in enumerate(uses) if (model, name) in use and not np.isnan(times[i])]
        kernels = data.kernel_names.values.astype(str)[at].tolist() if "kernel_names" in data else [""] * len(at)
        found.append(Layer(name, data.rows.values[at].astype(float), count * times[at], count * should[at], kernels))
    return found


def depth(model: str) -> int:
    """Layers of a model by its name here or in the catalogue, over however many GPUs it is split ("Qwen3-32B/tp2")."""
    if model in SHAPES:
        return int(shape(model)["num_hidden_layers"])
    from sim.specs.models import get_model  # a list's models are the catalogue's

    return get_model(SPLIT.sub("", model)).layers


def overview(data: xr.Dataset, least: float) -> str:
    """A line per product, within 80 columns: k, n, b for one with a bias, its bandwidth and rate, samples that were late, how far bursts of
    a point differ (interquartile, median over points), how many numbers of rows take `least` (a share) and more beyond its own smooth
    time, the worst of them, and whose it is.
    """
    lines = [["k", "n", "b", "GB/s", "Tf/s", "late", "iqr", f"+{least:.0%}", "most", "at", "of"]]
    k, n, bias, rows = (data[name].values.astype(int) for name in ("k", "n", "bias", "rows"))
    seconds, uses = data.time_s_median.values, data.layers.values.astype(str)
    apart = (data.time_s_p75.values - data.time_s_p25.values) / seconds
    for key in dict.fromkeys(zip(k.tolist(), n.tolist(), bias.tolist(), data.dtype.values.astype(str).tolist(), strict=True)):
        own = (k == key[0]) & (n == key[1]) & (bias == key[2]) & (data.dtype.values.astype(str) == key[3])
        at = np.flatnonzero(own & np.isfinite(seconds))
        figures, last = ["", "", f"{int(data.late_n.values[own].sum())}"], ["", "", "", ""]
        if at.size > 2:
            one = data.isel(point=at)
            smooth = fit(*work_of(one), seconds[at], exponents=(EXPONENT,))
            over = seconds[at] / smooth.seconds(*work_of(one)) - 1.0
            worst = int(over.argmax())
            figures[:2] = [f"{smooth.bytes_per_s / 1e9:.0f}", f"{smooth.flops_per_s / 1e12:.0f}"]
            last = [f"{np.nanmedian(apart[at]):.1%}", f"{int((over > least).sum())}", f"{over[worst]:+.0%}", f"{rows[at][worst]}"]
        whose = uses[own][0].split(", ")
        of = whose[0] + (f" +{len(whose) - 1}" if len(whose) > 1 else "")
        lines.append([str(key[0]), str(key[1]), "b" if key[2] else "", *figures, *last, of])
    text = aligned(lines, left=(10,), gap=" ")
    return "\n".join(line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in text.splitlines())


def work_of(data: xr.Dataset) -> tuple[Array, Array]:
    """(bytes of the weight, flops) of every point."""
    k, n = data.k.values.astype(float), data.n.values.astype(float)
    item = np.array([ITEM_BYTES.get(dtype, 2) for dtype in data.dtype.values.astype(str)])
    return k * n * item, 2.0 * k * n * data.rows.values


def computing(kernels: str) -> str:
    """Of the kernels of a product those that compute, as far as there is room: a library may clear its workspace first."""
    return " + ".join(name for name in kernels.split(" + ") if not name.startswith("Memset"))[:60]


def table(layers: list[Layer], least: float) -> str:
    """A line per number of rows that every layer was measured at and that takes `least` (a share) longer or shorter than it should."""
    common = sorted(set.intersection(*(set(layer.rows.tolist()) for layer in layers)))
    lines = [["rows", "ms", "smooth", "over", "share", "most of it", "", "kernel"]]
    for rows in common:
        at = [layer.rows.tolist().index(rows) for layer in layers]
        over = [float(layer.seconds[i] - layer.smooth[i]) for layer, i in zip(layers, at, strict=True)]
        should = sum(float(layer.smooth[i]) for layer, i in zip(layers, at, strict=True))
        if abs(sum(over)) < least * should:
            continue
        most = int(np.argmax(np.abs(over)))
        figures = [f"{1e3 * (should + sum(over)):.2f}", f"{1e3 * should:.2f}", f"{1e3 * sum(over):+.2f}", f"{sum(over) / should:+.0%}"]
        lines.append([f"{rows:.0f}", *figures, layers[most].name, f"{1e3 * over[most]:+.2f}", computing(layers[most].kernels[at[most]])])
    return aligned(lines, left=(5, 7))


@click.command("products_table", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--model", default=None, help="Only this model of the file.")
@click.option(
    "--least", type=click.FloatRange(0), default=0.05, show_default=True, help="Share off the smooth time below which rows are left out."
)
def command(file: Path, model: str | None, least: float) -> None:
    """Show at which numbers of rows matrix products take longer than they should.

    FILE is one of `--suite products`. A line is an iteration of so many rows: milliseconds of its layers' products, what a smooth
    maximum of bytes and flops says, what they take beyond, and the layer most of it is of. A file of a list of products shows a line
    for each instead, without --model.
    """
    data = opened(file, "products")
    names = models_of(data.layers.values.astype(str).tolist())
    ok = data.isel(point=np.flatnonzero(~np.isnan(data.time_s_median.values)))
    smooth = fit(*work_of(ok), ok.time_s_median.values)
    on = data.attrs.get("gpu_name") if data.attrs.get("device") == "cuda" else data.attrs.get("cpu")
    click.echo(f"{on}: {smooth.bytes_per_s / 1e9:.4g} GB/s, {smooth.flops_per_s / 1e12:.4g} Tflop/s, exponent {smooth.exponent:g}")
    if not model and not SHAPES.keys() >= set(names):
        click.echo("\n" + overview(data, least))
        return
    for name in [model] if model else names:
        layers = layers_of(ok, name, smooth)
        click.echo(f"\n{name}, {', '.join(layer.name for layer in layers)} of {depth(name)} layers\n")
        click.echo(table(layers, least))


def main() -> None:
    """Run the command."""
    call(command, "python -m hw.products_table")


if __name__ == "__main__":
    main()
