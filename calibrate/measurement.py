"""Measurement files, opened: whatever is wrong with the bytes becomes one error that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.specs.hf_config import spec_from_config
from sim.specs.model import ModelSpec

NETCDF = (b"\x89HDF\r\n\x1a\n", b"CDF")  # how netCDF-4 and netCDF-3 files begin


def open_measurement(path: str | Path) -> Any:
    """The whole xarray.Dataset of a netCDF file. UsageError when it is none or is damaged, OSError when it cannot be read at all."""
    import xarray as xr

    with open(path, "rb") as file:  # a missing or unreadable file is an OSError with its name
        begins = file.read(8)
    if not begins.startswith(NETCDF):
        raise UsageError(f"{path}: not a netCDF measurement (it does not begin as one)")
    try:
        with xr.open_dataset(path, decode_timedelta=False) as opened:
            return opened.load()
    except (ValueError, KeyError, OSError, RuntimeError) as error:  # the HDF5 library raises RuntimeError where a structure is damaged
        raise UsageError(f"{path}: not a netCDF measurement ({' '.join(str(error).split())[:80]})") from None


def model_of(attrs: dict[str, Any], path: str | Path) -> ModelSpec:
    """The model a file measured: its own config where it carries one, else the catalogue's. UsageError when it is neither."""
    if "model_config" not in attrs:
        from sim.specs.models import get_model

        return get_model(str(attrs["model"]))
    try:
        config = json.loads(attrs["model_config"])
    except (ValueError, TypeError, RecursionError):
        raise UsageError(f"{path}: model_config is not JSON") from None
    return spec_from_config(config, str(attrs["model"]), "measurement file")


def whole_number(attrs: dict[str, Any], name: str, default: int, path: str | Path) -> int:
    """An attribute that counts. UsageError when it does not."""
    try:
        return int(attrs.get(name, default))
    except (ValueError, TypeError):
        raise UsageError(f"{path}: {name} is not a whole number: {attrs[name]!r}") from None
