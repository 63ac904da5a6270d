"""`python -m hw.show FILE [DIM]`: a measurement file as CSV, the columns along one dimension."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
import numpy as np

from hw.artifact import load
from hw.exits import call
from sim.errors import UsageError

if TYPE_CHECKING:
    import xarray as xr


def write_csv(data: xr.Dataset, dim: str, out: TextIO) -> None:
    """Every variable along `dim` alone, a column each; NaN is an empty cell."""
    names = [name for name, variable in data.variables.items() if variable.dims == (dim,)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(zip(*([_cell(value) for value in data[name].values.tolist()] for name in names), strict=True))


def _cell(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return "" if np.isnan(value) else f"{value:.7g}"


def selected(data: xr.Dataset, at: str) -> xr.Dataset:
    """The dataset at one place of a dimension: DIM=NUMBER, or DIM=LABEL where it has labels. Raises UsageError if there is none."""
    dim, _, place = at.partition("=")
    if dim not in data.sizes:
        raise UsageError(f"--at {at}: no dimension {dim!r}; it has {', '.join(map(str, data.sizes))}")
    labels = data["label"].values.astype(str).tolist() if "label" in data and data["label"].dims == (dim,) else []
    index = labels.index(place) if place in labels else int(place) if place.isdigit() else -1
    if not 0 <= index < data.sizes[dim]:
        raise UsageError(f"--at {at}: no such {dim}; there are {', '.join(labels[:5]) + ', ...' if labels else data.sizes[dim]}")
    return data.isel({dim: index})


@click.command("show", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("dim", required=False)
@click.option("--at", help="One place of another dimension, by number or label: a profile's kernels with --at cell=decode:32x1024.")
@click.option("--attributes", is_flag=True, help="Its attributes instead, one a line.")
def command(file: Path, dim: str | None, at: str | None, attributes: bool) -> None:
    """Print a measurement file as CSV: the columns along DIM, which may be left out where a file has a single dimension."""
    data = load(file)
    if attributes:
        for name, value in data.attrs.items():
            click.echo(f"{name}: {value}")
        return
    data = selected(data, at) if at else data
    dims = [str(name) for name in data.sizes]
    if dim is None and len(dims) == 1:
        (dim,) = dims
    if dim not in dims:
        raise UsageError(f"{file}: {'which dimension' if dim is None else f'no dimension {dim!r}'}? it has {', '.join(dims)}")
    write_csv(data, dim, sys.stdout)


def main() -> None:
    """Run the command."""
    call(command, "python -m hw.show")


if __name__ == "__main__":
    main()
