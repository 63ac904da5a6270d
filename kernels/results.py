"""The table a benchmark leaves: rows of plain values, written as CSV and as netCDF with provenance, after every cell.

The netCDF file is the classic 64-bit-offset format, written here with numpy alone, since a GPU host may have no netCDF
library: dimension `cell`, one variable per column with its units, provenance as global attributes. xarray reads it.
"""

from __future__ import annotations

import csv
import datetime
import os
import platform
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

Row = dict[str, object]

# Column: (units, what it is). Text columns have no units.
COLUMNS: dict[str, tuple[str, str]] = {
    "suite": ("", "floor, dense, pages, sparse, gdn, host or step"),
    "op": ("", "what is computed; rows of equal op, batch, context, k and dtype are comparable"),
    "variant": ("", "which implementation"),
    "dtype": ("", "dtype of cache, operands or state"),
    "batch": ("1", "sequences"),
    "context": ("tokens", "tokens of every sequence in the cache"),
    "k_blocks": ("1", "selected blocks per sequence and KV head, 0 where none are selected"),
    "median": ("s", "median time of a call"),
    "p10": ("s", "10th percentile of the time"),
    "p90": ("s", "90th percentile of the time"),
    "repeats": ("1", "timed repeats"),
    "moved": ("bytes", "bytes the call has to move"),
    "rate": ("bytes s-1", "moved over median"),
    "of_floor": ("1", "floor time of those bytes in the same run over median"),
    "error_before": ("1", "relative error against float64 before timing, NaN where there is no gate"),
    "error_after": ("1", "the same after timing"),
    "error_bound": ("1", "bound both must meet"),
    "note": ("", "anything else, among it why a cell has no time"),
}
TEXT = {name for name in COLUMNS if name in ("suite", "op", "variant", "dtype", "note")}


def row(suite: str, op: str, variant: str, **values: object) -> Row:
    """One row with every column; what is not given is NaN, zero for counts, or empty."""
    unknown = set(values) - set(COLUMNS)
    if unknown:
        raise ValueError(f"values: unknown columns {sorted(unknown)}")
    empty: Row = {name: "" if name in TEXT else float("nan") for name in COLUMNS}
    counts = {"batch": 0, "context": 0, "k_blocks": 0, "repeats": 0}
    return {**empty, **counts, "suite": suite, "op": op, "variant": variant, **values}


def provenance() -> dict[str, str]:
    """Where and with what a run was made: GPU, driver, versions, time; read from the machine."""
    import torch
    import triton

    gpu = torch.cuda.get_device_properties(0)
    return {
        "gpu": gpu.name,
        "gpu_memory_bytes": str(gpu.total_memory),
        "gpu_multiprocessors": str(gpu.multi_processor_count),
        "gpu_l2_bytes": str(gpu.L2_cache_size),
        "driver": _driver(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "triton": triton.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"unknown ({error})"


def write(rows: Sequence[Row], attributes: Mapping[str, str], folder: Path, stem: str) -> None:
    """Write `folder`/`stem`.csv and .nc, each atomically. The CSV begins with the attributes as comment lines."""
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / f"{stem}.nc", netcdf(rows, attributes))
    lines = [f"# {name}: {value}\n" for name, value in attributes.items()]
    temporary = folder / f"{stem}.csv.tmp"
    with temporary.open("w", newline="") as file:
        file.writelines(lines)
        writer = csv.DictWriter(file, list(COLUMNS))
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in r.items()} for r in rows)
    os.replace(temporary, folder / f"{stem}.csv")


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _name(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">i", len(raw)) + raw + b"\0" * (-len(raw) % 4)


def _attributes(values: Mapping[str, str]) -> bytes:
    if not values:
        return b"\0" * 8
    body = b"".join(_name(k) + struct.pack(">i", 2) + _name(v) for k, v in values.items())
    return struct.pack(">ii", 12, len(values)) + body


def netcdf(rows: Sequence[Row], attributes: Mapping[str, str]) -> bytes:
    """The rows as a netCDF classic (64-bit offset) file: dimension cell, text as UTF-8 character arrays."""
    dims: list[tuple[str, int]] = [("cell", len(rows))]
    variables: list[tuple[str, list[int], int, dict[str, str], bytes]] = []
    for name, (units, meaning) in COLUMNS.items():
        if name in TEXT:
            raw = [str(r[name]).encode() for r in rows]
            width = max([1, *map(len, raw)])
            dims.append((f"{name}_length", width))
            data = b"".join(text.ljust(width, b"\0") for text in raw)
            variables.append((name, [0, len(dims) - 1], 2, {"long_name": meaning, "_Encoding": "utf-8"}, data))
        else:
            data = np.asarray([float(r[name]) for r in rows], dtype=">f8").tobytes()  # type: ignore[arg-type]
            variables.append((name, [0], 6, {"long_name": meaning, "units": units}, data))
    dim_list = struct.pack(">ii", 10, len(dims)) + b"".join(_name(n) + struct.pack(">i", size) for n, size in dims)
    head = b"CDF\x02" + struct.pack(">i", 0) + dim_list + _attributes(attributes) + struct.pack(">ii", 11, len(variables))
    entries = [
        _name(name) + struct.pack(f">i{len(ids)}i", len(ids), *ids) + _attributes(attrs) + struct.pack(">i", kind)
        for name, ids, kind, attrs, _ in variables
    ]
    padded = [data + b"\0" * (-len(data) % 4) for *_, data in variables]
    at = len(head) + sum(len(e) + 12 for e in entries)
    out = [head]
    for entry, data in zip(entries, padded, strict=True):
        out.append(entry + struct.pack(">iq", len(data), at))
        at += len(data)
    return b"".join(out + padded)
