"""Measurement files: the packaged ones, and those that a user names."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from calibrate.measurement import open_measurement
from calibrate.steps.grid_cells import SUITE, Grid, read_engine_grid
from sim.cost.gemm import MEASURED_AT
from sim.errors import UsageError
from sim.files import package_path
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import find_gpu
from sim.specs.lookup import key

VALIDATION = "validation"  # folder of runs that no rate is learnt from: they check rates that were learnt without them
KEPT_APART = ("void", VALIDATION)  # folders: runs that must not be used, and those


def packaged_measurements(gpu: GpuSpec | None = None) -> list[Path]:
    """Packaged netCDF measurement files to learn from, sorted by name: all, or those in the folder of a GPU."""
    found = (_root() / key(gpu.name) if gpu else _root()).rglob("*.nc")
    return sorted(path for path in found if path.parent.name not in KEPT_APART)


def validation_measurements() -> list[Path]:
    """Packaged measurement files that check rates learnt without them, sorted by name; a checkout has them, the wheel has none."""
    return sorted((_root() / VALIDATION).glob("*.nc"))


def served_files() -> list[Path]:
    """Packaged served runs to learn from, then those that check; a file whose every experiment is void is none."""
    every = (*packaged_measurements(), *validation_measurements())
    return [path for path in every if "served_" in path.name and not all(map(str, open_measurement(path, ("void",))["void"].values))]


def _root() -> Path:
    return package_path("scenarios", "data", "measured")


def resolved(path: Path) -> Path:
    """The file itself, or the packaged measurement of that name (`h100/served_qwen2.5-7b.nc`)."""
    if path.exists():
        return path
    return next((p for p in packaged_measurements() if str(path) == f"{p.parent.name}/{p.name}"), path)


def engine_grids(gpu: GpuSpec, given: Sequence[Path] = ()) -> list[Grid]:
    """Engine grids of `gpu`: the files given, else the packaged ones of 16-bit weights, further runs of a grid and those over several such
    GPUs among them.

    Raises UsageError when there are none, or of another GPU.
    """
    if given:
        own = gpu if gpu.origin != "catalogue" else None  # no catalogue knows what the file calls it
        grids = [on_machine(read_engine_grid(resolved(path), own), resolved(path)) for path in given]
        for grid in grids:
            if own is not None and find_gpu(grid.device, [own]) is None:
                raise UsageError(f"{grid.source}: measured on {grid.device!r}; {gpu.origin} has neither that name nor such an alias")
            if grid.gpu.name != gpu.name:
                raise UsageError(f"{grid.source}: measured on {grid.gpu.name}, not on {gpu.name}")
        return grids
    grids = _packaged_grids(gpu)
    if not grids:
        raise UsageError(f"no packaged engine grid of {gpu.name}; give files with --from, or measure with `simctl measure`")
    return grids


def of_engine(grids: Sequence[Grid], engine: str | None, given: bool) -> list[Grid]:
    """Grids of one engine (`vllm`, or `vllm 0.23.0`), all of them where none is named.

    UsageError where one that was given is of another, or where none is left.
    """
    if engine is None:
        return list(grids)
    kept = [grid for grid in grids if engine.casefold() in (grid.engine.casefold(), grid.engine.casefold().split(" ")[0])]
    if given and len(kept) < len(grids):
        other = next(grid for grid in grids if grid not in kept)
        raise UsageError(f"{other.source}: measured on {other.engine}, not on {engine}")
    if not kept:
        raise UsageError(f"no packaged engine grid on {engine}; packaged: {', '.join(sorted({grid.engine for grid in grids}))}")
    return kept


def on_machine(grid: Grid, path: Path) -> Grid:
    """The grid with the machine that the packaged list says a packaged file was measured on; of other files what they say themselves."""
    label = machines().get(f"{path.parent.name}/{path.name}", "") if path.resolve().is_relative_to(_root().resolve()) else ""
    if not label:
        return grid
    return replace(grid, cells=replace(grid.cells, machine=np.full(len(grid.cells), label)))


@cache
def machines() -> dict[str, str]:
    """Machines of packaged files (`h100/engine-grid_x.nc`), as far as they are known: letters, alike where it was the same."""
    text = (_root() / "machines.csv").read_text(encoding="utf-8")
    return {row["file"]: row["machine"] for row in csv.DictReader(text.splitlines())}


def _packaged_grids(gpu: GpuSpec) -> list[Grid]:
    every = (on_machine(read_engine_grid(path), path) for path in packaged_measurements(gpu) if path.name.startswith(SUITE))
    return [grid for grid in every if grid.gpu.name == gpu.name and grid.precision.weights == MEASURED_AT]
