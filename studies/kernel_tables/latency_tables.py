"""Kernel latency tables of engines, read from the layout that public packages ship them in.

    <system>/<operation>/vllm/<version>/<table>.parquet             the package's own layout, or
    <system>/<operation>__<table>__vllm-<version>.parquet           the same, flattened

`.csv` files with the same columns are read as well. `latency` is in milliseconds of one call, of one layer where the operation is a module
of a layer. Of several versions of a table the newest is taken.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.extras import install_hint
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu

Array = NDArray[Any]
ENGINE = "vllm"
SUFFIXES = (".parquet", ".csv")
UNREAD = ("framework", "version", "device", "op_name", "model", "architecture", "model_name", "beam_width")
# Systems as the packages name them, where the catalogue has another name.
SYSTEMS = {"rtx_pro_6000_server": "RTX-PRO-6000-Server", "a100_sxm": "A100-80G", "a100_pcie": "A100-80G-PCIe"}
_FLAT = re.compile(r"(?P<operation>\w+?)__(?P<table>\w+)__(?P<engine>\w+)-(?P<version>[\w.+-]+)$")


@dataclass(frozen=True, eq=False)
class Table:
    """One table of one GPU: columns [row], `latency` in milliseconds."""

    gpu: GpuSpec
    name: str  # gemm_perf, moe_perf, ...
    version: str
    path: Path
    columns: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.columns["latency"])

    def where(self, kept: Array) -> Table:
        """The rows of a mask [row]."""
        return Table(self.gpu, self.name, self.version, self.path, {name: values[kept] for name, values in self.columns.items()})

    def number(self, name: str, absent: float | None = None) -> Array:
        """A column as floats; `absent` for a table without it. UsageError where it is missing or holds something else."""
        if name not in self.columns:
            if absent is None:
                raise UsageError(f"{self.path}: no column {name!r}; it has {', '.join(self.columns)}")
            return np.full(len(self), absent)
        try:
            return np.asarray(self.columns[name], dtype=float)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{self.path}: column {name!r} is not numeric ({error})") from None

    def text(self, name: str, absent: str = "") -> Array:
        """A column as text; `absent` for a table without it."""
        return np.asarray(self.columns[name], dtype=str) if name in self.columns else np.full(len(self), absent)


def read_tables(folder: Path, gpu: GpuSpec | None = None, names: Collection[str] = ()) -> list[Table]:
    """All tables under a folder, or those of some names, by GPU and name; `gpu` keeps its own, whatever the only system's folder is called.

    UsageError for a folder without tables, a system that no catalogue knows, a damaged file, a latency that is no positive number.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no folder of kernel tables")
    newest: dict[tuple[str, str], tuple[tuple[Any, ...], str, Path]] = {}
    for path in sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES):
        if (found := _named(path, folder)) is None:
            continue
        system, name, version = found
        rank = tuple(int(part) for part in re.findall(r"\d+", version))
        if (system, name) not in newest or newest[system, name][0] < rank:
            newest[system, name] = (rank, version, path)
    if not newest:
        raise UsageError(f"{folder}: no kernel tables of {ENGINE} (SYSTEM/OPERATION/{ENGINE}/VERSION/TABLE.parquet, or flattened)")
    systems = sorted({system for system, _ in newest})
    gpus = {system: gpu if gpu is not None and len(systems) == 1 else _gpu(system, folder) for system in systems}
    return [
        _read(path, gpus[system], name, version)
        for (system, name), (_, version, path) in sorted(newest.items())
        if (gpu is None or gpus[system].name == gpu.name) and (not names or name in names)
    ]


def _named(path: Path, folder: Path) -> tuple[str, str, str] | None:
    """(system, table, version) of a file, None where it is another engine's or no table."""
    if flat := _FLAT.match(path.stem):
        return (path.parent.name, flat["table"], flat["version"]) if flat["engine"] == ENGINE else None
    parts = path.relative_to(folder).parts
    if len(parts) >= 4 and parts[-3] == ENGINE:
        return (parts[-5] if len(parts) >= 5 else folder.name, path.stem, parts[-2])
    return None


def _gpu(system: str, folder: Path) -> GpuSpec:
    try:
        return get_gpu(SYSTEMS.get(system, system))
    except UsageError as unknown:
        raise UsageError(f"{folder}/{system}: {unknown}") from None


def _read(path: Path, gpu: GpuSpec, name: str, version: str) -> Table:
    columns = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    table = Table(gpu, name, version, path, columns)
    seconds = table.number("latency")
    kept = np.isfinite(seconds) & (seconds > 0)
    return table if kept.all() else table.where(kept)


def _parquet(path: Path) -> dict[str, Array]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UsageError(f"{path}: parquet needs pyarrow: {install_hint('tables')}") from None
    try:
        names = [name for name in parquet.read_schema(path).names if name not in UNREAD]
        found = parquet.read_table(path, columns=names)
    except (ArrowException, OSError) as error:
        raise UsageError(f"{path}: not readable as parquet ({error})") from None
    return {name: found.column(name).to_numpy() for name in found.column_names}


def _csv(path: Path) -> dict[str, Array]:
    import csv

    with path.open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    if not rows:
        raise UsageError(f"{path}: no rows")
    if any(None in row or None in row.values() for row in rows):
        raise UsageError(f"{path}: rows of unlike lengths")
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}
