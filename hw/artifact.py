"""Measurement files: one xarray Dataset per suite as netCDF, written whole or not at all. `python -m hw.show FILE` prints one as CSV."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hw import netcdf3
from sim.errors import SimctlError, UsageError
from sim.files import replacing
from sim.netcdf import netcdf_content, said

if TYPE_CHECKING:
    import xarray as xr

SCHEMA = "simctl-measurement/1"
WALL_CLOCK_S = 1e6  # seconds beyond this count from 1970: too many digits for float32


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
            array = np.array(values, dtype=np.int64 if max(abs(v) for v in values if v is not None) < 2**31 else np.float64)
        else:
            array = np.array([np.nan if v is None else float(v) for v in values])
        variables[name] = (dim, array, {"long_name": text, "units": unit})
    return variables


def write(dataset: xr.Dataset, path: Path) -> Path:
    """Write compressed netCDF-4 where h5py is installed, netCDF-3 otherwise; `xarray.open_dataset` reads both.

    Raises OSError naming the file; a failed write leaves the previous file in place.
    """
    # netCDF attributes are numbers and text
    dataset = dataset.assign_attrs({k: int(v) if isinstance(v, bool) else ("" if v is None else v) for k, v in dataset.attrs.items()})
    content = packed(dataset) if importlib.util.find_spec("h5py") else netcdf3.content(dataset)
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return path


def packed(dataset: xr.Dataset) -> memoryview:
    """Content of a compressed netCDF-4 file, real numbers as float32 (`narrowed`)."""
    slim = dataset.copy()
    for name, variable in dataset.variables.items():
        if variable.dtype == np.float64:
            slim[name] = (variable.dims, narrowed(variable.values, str(variable.attrs.get("units", ""))), variable.attrs)
    return netcdf_content({"/": slim})


def narrowed(values: NDArray[np.float64], units: str) -> NDArray[Any]:
    """Values as float32 (relative error 6e-8); as they are where counts would change, and times of the day."""
    finite = values[np.isfinite(values)]
    counts = bool(np.all(finite == np.round(finite)))
    if counts and np.any(finite != finite.astype(np.float32)):
        return values
    if units == "s" and np.any(np.abs(finite) > WALL_CLOCK_S):
        return values
    return values.astype(np.float32)


def load(path: Path, suite: str | None = None) -> xr.Dataset:
    """A measurement file, of `suite` when given. Raises UsageError for one that is no netCDF, SimctlError for one of something else."""
    import xarray as xr

    try:
        with xr.open_dataset(path) as opened:
            dataset = opened.load()
    except FileNotFoundError:
        raise
    except (ValueError, OSError) as error:
        raise UsageError(f"{path}: not a netCDF file ({said(error)})") from None
    if dataset.attrs.get("schema") != SCHEMA:
        raise SimctlError(f"{path}: not a measurement file (schema {dataset.attrs.get('schema')!r}, want {SCHEMA!r})")
    if suite and dataset.attrs.get("suite") != suite:
        raise SimctlError(f"{path}: holds suite {dataset.attrs.get('suite')!r}, want {suite!r}")
    return dataset
