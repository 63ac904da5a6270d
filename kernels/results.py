"""The table of a benchmark run: its columns, its provenance, reading and writing."""

from __future__ import annotations

import csv
import datetime
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = dict[str, object]

# Column: (units, what it is). Text columns have no units.
COLUMNS: dict[str, tuple[str, str]] = {
    "suite": ("", "floor (roofline), dense, sparse, gdn, host"),
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
    "of_floor": ("1", "share of the roofline: time of those bytes at the bandwidth measured in the same run, over median"),
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
    """Provenance of a run: GPU, driver, versions, time; read from the machine."""
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


def write(rows: Sequence[Row], attributes: Mapping[str, str], path: Path) -> None:
    """Write the table as CSV, atomically: attributes as comment lines, then the columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        file.writelines(f"# {name}: {value}\n" for name, value in attributes.items())
        writer = csv.DictWriter(file, list(COLUMNS))
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in r.items()} for r in rows)
    os.replace(temporary, path)


def read(path: Path) -> tuple[dict[str, str], list[Row]]:
    """Attributes and rows of a table, numbers as floats: the CSV that `write` left, or a netCDF file with the same variables."""
    if path.suffix == ".nc":
        import xarray as xr

        with xr.open_dataset(path) as opened:
            columns = {name: opened[name].values.tolist() for name in COLUMNS if name in opened}
            attributes = {str(name): str(value) for name, value in opened.attrs.items()}
        records = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    else:
        lines = path.read_text().splitlines()
        head = [line for line in lines if line.startswith("# ")]
        attributes = dict(line[2:].split(": ", 1) for line in head)
        records = list(csv.DictReader(lines[len(head) :]))
    return attributes, [{k: str(v) if k in TEXT else float(v) for k, v in r.items()} for r in records]
