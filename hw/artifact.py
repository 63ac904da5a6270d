"""Measurement files: one xarray Dataset per suite as netCDF, and a readable CSV beside it. Written whole or not at all."""

from __future__ import annotations

import csv
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hw import netcdf3
from sim.errors import SimctlError

if TYPE_CHECKING:
    import xarray as xr

SCHEMA = "simctl-measurement/1"
ZLIB = {"zlib": True, "complevel": 5}
# by kind of type; text of any length is not compressed, arrays of characters are
PACKED = {kind: ZLIB if kind in "fiu" else {"dtype": "S1", **ZLIB} for kind in "fiuOU"}


def table(dim: str, rows: Sequence[Mapping[str, Any]], described: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Rows as xarray variables along `dim`; `described` maps a column to (long name, unit). Missing numbers become NaN.

    Returns `{column: (dim, values, attrs)}` in the order of `described`; a column no row has is left out.
    """
    variables = {}
    for name, (text, unit) in described.items():
        if not any(name in row for row in rows):
            continue
        values = [row.get(name) for row in rows]
        if any(isinstance(v, str) for v in values):
            array = np.array(["" if v is None else str(v) for v in values], dtype=object)
        elif all(isinstance(v, bool) for v in values):
            array = np.array(values, dtype=np.int8)
        elif all(isinstance(v, int) for v in values):
            # netCDF-3 has no 64-bit integer: a large count travels as a float, exact up to 2**53
            array = np.array(values, dtype=np.int64 if max(map(abs, values)) < 2**31 else np.float64)
        else:
            array = np.array([np.nan if v is None else float(v) for v in values])
        variables[name] = (dim, array, {"long_name": text, "units": unit})
    return variables


def write(dataset: xr.Dataset, path: Path, csv_dims: Mapping[str, str]) -> list[Path]:
    """Write `path` (.nc) and one CSV per entry of `csv_dims` (dimension -> file suffix, "" for the plain name).

    Compressed netCDF-4 where h5netcdf and h5py are installed, netCDF-3 otherwise (both load with `xarray.open_dataset`).
    Raises OSError; a failed write leaves the previous file in place.
    """
    written = [path]
    # netCDF attributes are numbers and text
    dataset = dataset.assign_attrs({k: int(v) if isinstance(v, bool) else ("" if v is None else v) for k, v in dataset.attrs.items()})
    temporary = path.with_suffix(".nc.tmp")
    try:
        if importlib.util.find_spec("h5netcdf") and importlib.util.find_spec("h5py"):
            packed = {n: PACKED[v.dtype.kind] for n, v in dataset.variables.items() if v.dtype.kind in PACKED}
            dataset.to_netcdf(temporary, engine="h5netcdf", encoding=packed)
        else:
            temporary.write_bytes(netcdf3.content(dataset))
        os.replace(temporary, path)
    except OSError as error:
        raise named(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)
    for dim, suffix in csv_dims.items():
        if dim in dataset.dims:
            target = path.with_suffix(f"{suffix}.csv")
            _write_csv(dataset, dim, target)
            written.append(target)
    return written


def named(error: OSError, path: Path) -> OSError:
    """The same error, saying which file it was and in the system's words: libraries leave out the one and bury the other."""
    return OSError(error.errno, os.strerror(error.errno), str(path)) if error.errno else error


def _write_csv(dataset: xr.Dataset, dim: str, path: Path) -> None:
    names = [n for n, v in dataset.variables.items() if v.dims == (dim,)]
    columns = [dataset[n].values for n in names]
    temporary = path.with_suffix(".csv.tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_plain(column[i]) for column in columns] for i in range(dataset.sizes[dim]))
    os.replace(temporary, path)


def _plain(value: Any) -> Any:
    if isinstance(value, (float, np.floating)):
        return "" if np.isnan(value) else f"{float(value):.7g}"
    return value


def load(path: Path, suite: str | None = None) -> xr.Dataset:
    """Open a measurement and check that it is one, of `suite` when given. Raises SimctlError otherwise."""
    import xarray as xr

    with xr.open_dataset(path) as opened:
        dataset = opened.load()
    if dataset.attrs.get("schema") != SCHEMA:
        raise SimctlError(f"{path}: not a measurement file (schema {dataset.attrs.get('schema')!r}, want {SCHEMA!r})")
    if suite and dataset.attrs.get("suite") != suite:
        raise SimctlError(f"{path}: holds suite {dataset.attrs.get('suite')!r}, want {suite!r}")
    return dataset
