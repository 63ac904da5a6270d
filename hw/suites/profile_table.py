"""What a profile leaves: its journal as one Dataset of cells and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hw.cells import ASKED, Cell
from hw.composition import FIELDS
from hw.kernel_kinds import KINDS, kind_of
from hw.suites.profile import PROTOCOL

CELL = {
    "label": ("composition", ""),
    "kind": ("decode, ragged, prefill, packed or mixed", ""),
    "status": ("ok, oom or error", ""),
    **ASKED,
    "wall_s": ("wall time of the engine step, the profiler's own cost in it", "s"),
    "model_s": ("part of it from schedule decided to tokens on the host", "s"),
    "span_us": ("first kernel's start to the last one's end", "us"),
    "busy_us": ("part of it in which a kernel ran", "us"),
    "busy_us_least": ("the same, least of the iterations profiled", "us"),
    "busy_us_most": ("most of them", "us"),
    **{f"{kind}_us": (f"kernels of kind {kind}, summed", "us") for kind in KINDS},
    "launches": ("kernels and copies that ran", "1"),
    **FIELDS,
}
KERNEL = {"kernel_name": ("name, cut short", ""), "kernel_kind": (f"one of {', '.join(KINDS)}, by its name", "")}


def dataset(records: Sequence[dict[str, Any]], attrs: dict[str, Any]) -> Any:
    """The journal as an xarray Dataset: tables along `cell` and `kernel`; `calls` (int32) and `us` (float32) of both [cell, kernel]."""
    import xarray as xr

    from hw.artifact import SCHEMA, table

    names = sorted({name for r in records for name in r["found"].get("kernels", {})})
    kernels = [{"kernel_name": name, "kernel_kind": kind_of(name)} for name in names]
    place = {name: i for i, name in enumerate(names)}
    calls, times = np.zeros((len(records), len(names)), np.int32), np.zeros((len(records), len(names)), np.float32)
    for row, record in enumerate(records):
        for name, (count, us) in record["found"].get("kernels", {}).items():
            calls[row, place[name]], times[row, place[name]] = count, us
    cells = [_cell_row(record) for record in records]
    both = ("cell", "kernel")
    variables = table("cell", cells, CELL) | table("kernel", kernels, KERNEL)
    variables |= {
        "calls": (both, calls, {"long_name": "times the kernel ran in the iteration", "units": "1"}),
        "us": (both, times, {"long_name": "time it took in all", "units": "us"}),
    }
    derived = {
        "protocol": PROTOCOL,
        "cells_ok": sum(c["status"] == "ok" for c in cells),
        "cells_failed": sum(c["status"] != "ok" for c in cells),
    }
    return xr.Dataset(variables, attrs={"schema": SCHEMA, "suite": "profile", **derived, **attrs})


def _cell_row(record: dict[str, Any]) -> dict[str, Any]:
    cell, found = Cell.of(record["cell"]), record["found"]
    kernels = found.get("kernels", {})
    by_kind = {f"{kind}_us": float(sum(us for name, (_, us) in kernels.items() if kind_of(name) == kind)) for kind in KINDS}
    row = {
        "label": cell.label,
        "kind": cell.kind,
        "status": record["status"],
        **cell.row(),
    }
    if not found:
        return row
    return row | {k: v for k, v in found.items() if k != "kernels"} | by_kind | {"launches": int(sum(n for n, _ in kernels.values()))}
