"""`python -m hw.profile_table FILE [CELL]`: where the GPU's time of an iteration goes, from a file of the suite profile."""

from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from hw.artifact import load
from hw.exits import call
from hw.kernel_kinds import KINDS
from sim.errors import UsageError
from sim.netcdf import said

if TYPE_CHECKING:
    import xarray as xr

WORDS = {"matmul": "matrix products", "attention": "attention", "experts": "experts", "copies": "copies", "rest": "rest"}


def cells_named(data: xr.Dataset, pattern: str) -> list[int]:
    """Cells that ran and whose label is `pattern` or matches it with * and ?. Raises UsageError, naming near ones, when there is none."""
    labels = data.label.values.astype(str).tolist()
    ran = [i for i, status in enumerate(data.status.values.astype(str)) if status == "ok"]
    found = [i for i in ran if labels[i] == pattern] or [i for i in ran if fnmatchcase(labels[i], pattern)]
    if not found:
        near = get_close_matches(pattern, [labels[i] for i in ran], n=3, cutoff=0.0)
        raise UsageError(f"no cell {pattern!r} that ran; near it: {', '.join(near) or 'none'}")
    return found


def overview(data: xr.Dataset, cells: list[int]) -> str:
    """A line per cell: microseconds busy and idle, and by kind."""
    head = ["cell", "busy", "idle", *KINDS, "launches"]
    rows = [head]
    for i in cells:
        of = data.isel(cell=i)
        numbers = [float(of.busy_us), float(of.span_us - of.busy_us), *(float(of[f"{k}_us"]) for k in KINDS)]
        rows.append([str(of.label.values), *(f"{n:.0f}" for n in numbers), f"{int(of.launches)}"])
    return aligned(rows)


def by_kind(data: xr.Dataset, cell: int) -> str:
    """One cell: its kinds of kernels and what is idle between them, in microseconds and as shares of the span."""
    of = data.isel(cell=cell)
    span, busy = float(of.span_us), float(of.busy_us)
    kinds = data.kernel_kind.values.astype(str)
    rows = [["", "us", "of the span", "launches"]]
    for kind in KINDS:
        us, calls = float(of[f"{kind}_us"]), int(of.calls.values[kinds == kind].sum())
        if calls:
            rows.append([WORDS[kind], f"{us:.1f}", f"{us / span:.1%}", str(calls)])
    together = sum(float(of[f"{kind}_us"]) for kind in KINDS)
    if together > busy * 1.001:  # kernels of several streams
        rows.append(["at once, counted twice", f"{busy - together:.1f}", f"{(busy - together) / span:.1%}", ""])
    rows += [["idle between kernels", f"{span - busy:.1f}", f"{1 - busy / span:.1%}", ""], ["span", f"{span:.1f}", "", ""]]
    return aligned(rows)


def longest(data: xr.Dataset, cell: int, most: int) -> str:
    """The `most` kernels of one cell that took longest in all."""
    us, calls = data.us.values[cell], data.calls.values[cell]
    rows = [["us", "launches", "us each", "kind", "kernel"]]
    for i in np.argsort(-us)[:most]:
        if calls[i]:
            name = str(data.kernel_name.values[i])
            rows.append([f"{us[i]:.1f}", str(calls[i]), f"{us[i] / calls[i]:.2f}", str(data.kernel_kind.values[i]), name[:60]])
    return aligned(rows, left=(3, 4))


def aligned(rows: list[list[str]], left: tuple[int, ...] = (0,), gap: str = "  ") -> str:
    """Columns padded to their widest, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [gap.join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def opened(path: Path, suite: str) -> xr.Dataset:
    """A file of this suite. Raises UsageError for one that is no netCDF, SimctlError for one of another suite."""
    try:
        return load(path, suite)
    except (ValueError, OSError) as error:
        raise UsageError(f"{path}: not a netCDF file ({said(error)})") from None


@click.command("profile_table", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("cell", required=False)
@click.option("--kernels", default=10, show_default=True, type=click.IntRange(0), help="How many of a cell's kernels to list.")
def command(file: Path, cell: str | None, kernels: int) -> None:
    """Show where the GPU's time of an iteration goes.

    FILE is one of `--suite profile`. Without CELL, a line for every cell, in microseconds; CELL is a label as printed there, or a
    pattern (quote it): 'decode:*'. Of a single cell, shares by kind and the longest kernels are shown.
    """
    data = opened(file, "profile")
    found = cells_named(data, cell or "*")
    if len(found) > 1:
        click.echo(overview(data, found))
        return
    on = data.attrs.get("gpu_name") if data.attrs.get("device") == "cuda" else data.attrs.get("cpu")
    click.echo(f"{data.attrs.get('model')} on {on}, {data.label.values[found[0]]}\n")
    click.echo(by_kind(data, found[0]))
    if kernels:
        click.echo(f"\n{longest(data, found[0], kernels)}")


def main() -> None:
    """Run the command."""
    call(command, "python -m hw.profile_table")


if __name__ == "__main__":
    main()
