"""Measurement files, opened: whatever is wrong with the bytes becomes one error that names the file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import UsageError
from sim.netcdf import DamagedFileError, whole
from sim.specs.hf_config import spec_from_config
from sim.specs.model import ModelSpec
from sim.specs.precision import Precision

NETCDF = (b"\x89HDF\r\n\x1a\n", b"CDF")  # how netCDF-4 and netCDF-3 files begin
DTYPE = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "gptq": "int4", "awq": "int4", "fp8-block": "fp8"}
# What quantised checkpoints say, by the name that `measure --quantization` takes (hw.engines.shapes).
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    "fp8-block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
}
# Kernels of linear layers in measurements before FIRST_SAID, whose files do not say them: AWQ by Marlin, and no engine had DeepGEMM.
UNSAID, FIRST_SAID = {"awq": "marlin", "fp8-block": "cutlass"}, "2026-11-28"
DIMENSION, SAID = "This is a netCDF dimension", ("long_name", "units")  # NAME of what is no variable; attributes of one
STORED = ("mxfp4",)  # that a config.json names, and a file written before it was looked for does not


def open_measurement(path: str | Path, only: Sequence[str] | None = None) -> Any:
    """The xarray.Dataset of a netCDF file, whole or with only the variables named; its attributes in any case.

    Raises UsageError when it is none or is damaged, OSError when it cannot be read at all.
    """
    with open(path, "rb") as file:  # a missing or unreadable file is an OSError with its name
        begins = file.read(8)
    if not begins.startswith(NETCDF):
        raise UsageError(f"{path}: not a netCDF measurement (it does not begin as one)")
    try:
        data = whole(lambda: _by_hdf5(path, only) if begins == NETCDF[0] else _by_xarray(path))
    except DamagedFileError as damage:
        raise UsageError(f"{path}: not a netCDF measurement ({damage})") from None
    # packed as float32 (hw.artifact), computed with as float64
    return data.assign({n: v.astype(np.float64) for n, v in data.data_vars.items() if v.dtype == np.float32})


def _by_xarray(path: str | Path) -> Any:
    import xarray as xr

    with xr.open_dataset(path, decode_timedelta=False) as opened:
        return opened.load()


def _by_hdf5(path: str | Path, only: Sequence[str] | None) -> Any:
    """All variables, or those named: xarray takes ten times as long, most of it to look at each of them first."""
    import h5py
    import xarray as xr

    def plain(value: Any) -> Any:
        value = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
        return value.decode() if isinstance(value, bytes) else value

    columns = {}
    with h5py.File(path, "r") as file:
        for name in file if only is None else only:
            if name in file and not plain(file[name].attrs.get("NAME", "")).startswith(DIMENSION):
                values, dims = file[name][...], tuple(dim[0].name.lstrip("/") for dim in file[name].dims)
                if values.dtype.kind == "S" and values.ndim == 2:  # text as arrays of characters
                    values, dims = np.char.decode(values.view(f"S{values.shape[1]}")[:, 0]), dims[:1]
                elif values.dtype.kind == "O":
                    values = np.asarray(file[name].asstr()[...], dtype=object)
                columns[name] = (dims, values, {each: plain(file[name].attrs[each]) for each in SAID if each in file[name].attrs})
        return xr.Dataset(columns, attrs={name: plain(value) for name, value in file.attrs.items() if name != "_NCProperties"})


def check_columns(
    data: Any, path: str | Path, dim: str, needed: Sequence[str], *, numbers: Sequence[str] = (), seconds: Sequence[str] = ()
) -> None:
    """Raise UsageError unless the columns `needed` are there and lie along `dim`, `numbers` hold numbers, and `seconds` are in seconds."""
    if missing := [name for name in needed if name not in data]:
        raise UsageError(f"{path}: lacks {', '.join(missing)}")
    if astray := [name for name in needed if data[name].dims != (dim,)]:
        raise UsageError(f"{path}: {', '.join(astray)} not along the {dim} dimension")
    for name in seconds:
        if (unit := data[name].attrs.get("units", "s")) != "s":
            raise UsageError(f"{path}: {name} is in {unit!r}, want 's'")
    if words := [name for name in (*seconds, *numbers) if data[name].dtype.kind not in "iuf"]:
        raise UsageError(f"{path}: {', '.join(words)} not in numbers")


def check_attributes(attrs: dict[str, Any], path: str | Path, schema: str, suites: Sequence[str], needed: Sequence[str]) -> None:
    """Raise UsageError unless a file is a measurement of one of `suites`, and says what it was measured on."""
    said = {name: str(attrs.get(name)) for name in ("schema", "suite")}
    if said["schema"] != schema or said["suite"] not in suites:
        raise UsageError(f"{path}: not a measurement of {' or '.join(suites)} (schema {said['schema']!r}, suite {said['suite']!r})")
    if missing := [name for name in needed if name not in attrs]:
        raise UsageError(f"{path}: lacks {', '.join(missing)}")


def model_of(attrs: dict[str, Any], path: str | Path) -> ModelSpec:
    """The model a file measured: its own config where it carries one, else the catalogue's. UsageError when it is neither."""
    if "model" not in attrs:
        raise UsageError(f"{path}: lacks model")
    if "model_config" not in attrs:
        from sim.specs.models import get_model

        return get_model(str(attrs["model"]))
    try:
        config = json.loads(attrs["model_config"])
    except (ValueError, TypeError, RecursionError):
        raise UsageError(f"{path}: model_config is not JSON") from None
    if isinstance(config, dict) and (checkpoint := CHECKPOINTS.get(str(attrs.get("weight_dtype")))):
        config = {"quantization_config": checkpoint, **config}
    return spec_from_config(config, str(attrs["model"]), "measurement file")


def precision_of(attrs: dict[str, Any]) -> Precision:
    """Dtypes of weights and KV, by their names in PyTorch, an engine or here; bf16 where a file does not say.

    Weights in 16 bits of a model whose config.json stores them in fewer are what that says. The kernel is the one that was asked for.
    """
    asked = re.search(r"--linear-backend[ =](\w+)", f"{attrs.get('engine_args', '')} {attrs.get('plan_server_flags', '')}")
    kernel = UNSAID.get(str(attrs.get("weight_dtype")), "") if str(attrs.get("date_utc", FIRST_SAID)) < FIRST_SAID else ""
    weights, kv = (str(attrs.get(name, "bf16")) for name in ("weight_dtype", "kv_dtype"))
    weights = DTYPE.get(weights, weights)
    if weights in ("bf16", "fp16"):
        weights = next((name for name in STORED if f'"quant_method": "{name}"' in str(attrs.get("model_config"))), weights)
    return Precision(weights, DTYPE.get(kv, kv), asked[1] if asked else kernel)


def whole_number(attrs: dict[str, Any], name: str, default: int, path: str | Path) -> int:
    """An attribute that counts. UsageError when it does not."""
    try:
        return int(attrs.get(name, default))
    except (ValueError, TypeError):
        raise UsageError(f"{path}: {name} is not a whole number: {attrs[name]!r}") from None
