"""Table of an engine-grid run: its journal as one Dataset, and the gates that follow from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hw.artifact import table
from hw.cells import REQUESTED, Cell
from hw.engines.composition import FIELDS
from hw.pace import summarize

PROTOCOL = "engine-grid/5"
VISIT = " visit "  # in a key, before the number of one that is not the first
WARMUP_RULE = "first 3 iterations of a decode cell, first repeat of a chunk"
ITERATION = {
    "cell_index": ("index into the cell dimension", "1"),
    "visit": ("which time round the grid", "1"),
    "repeat": ("order within the visit", "1"),
    "warmup": ("excluded by rule", "bool"),
    "target": ("carries what the cell asked for (a decode between two chunks does not)", "bool"),
    "step_s": ("wall time of the engine step, scheduling to outputs", "s"),
    "model_s": ("part of it from schedule decided to tokens on the host", "s"),
    **FIELDS,
}
CELL = {
    "label": ("composition, then its place in the run", ""),
    "kind": ("decode, ragged, prefill, packed or mixed", ""),
    "role": ("grid, control (context computed, not placed) or again (drift check)", ""),
    "status": ("ok, oom or error", ""),
    **REQUESTED,
    "step_s_median": ("median over visits of the median step time of counted target iterations", "s"),
    "step_s_p25": ("lower quartile", "s"),
    "step_s_p75": ("upper quartile", "s"),
    "step_s_n": ("counted target iterations", "1"),
    "model_s_median": ("the same of the model part", "s"),
    "visits": ("times the cell was visited", "1"),
    "step_s_visits_sd": ("standard deviation of the logarithm of the visits' medians, nan for one visit", "1"),
    **{f"{name}_median": (f"median of counted target iterations: {text}", unit) for name, (text, unit) in FIELDS.items()},
}


def dataset(records: Iterable[dict[str, Any]], attrs: dict[str, Any]) -> Any:
    """The journal as an xarray Dataset with dims `iteration` and `cell`, None where no cell ran; gates that follow become attributes."""
    import xarray as xr

    visits: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record["role"] != "warm":
            visits.setdefault(record["key"].split(VISIT)[0], []).append(record)
    if not visits:
        return None
    iterations = [{"cell_index": i, **row} for i, made in enumerate(visits.values()) for record in made for row in record["rows"]]
    cells = [_cell_row(made) for made in visits.values()]
    suite = attrs.get("suite", "engine-grid")
    derived = {
        "protocol": PROTOCOL if suite == "engine-grid" else f"{suite}/1 over {PROTOCOL}",
        "control_computed_over_placed": next(iter(_ratios(cells, "control")), float("nan")),
        "drift_again_over_first": max(_ratios(cells, "again"), key=lambda r: abs(r - 1), default=float("nan")),
        "cells_ok": sum(c["status"] == "ok" for c in cells),
        "cells_failed": sum(c["status"] != "ok" for c in cells),
        "warmup_rule": WARMUP_RULE,
    }
    return xr.Dataset(table("iteration", iterations, ITERATION) | table("cell", cells, CELL), attrs={**derived, **attrs})


def counted(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a visit that are of its cell, past warming up."""
    return [row for row in record["rows"] if row["target"] and not row["warmup"]]


def _cell_row(visits: list[dict[str, Any]]) -> dict[str, Any]:
    """One cell. A visit that failed takes nothing from those that did not; a cell failed when none ran."""
    record = next((v for v in visits if v["status"] == "ok"), visits[0])
    cell = Cell.of(record["cell"])
    several = [rows for rows in map(counted, visits) if rows]
    pooled = [r for rows in several for r in rows]
    medians = {f"{k}_median": float(np.median([r[k] for r in pooled])) if pooled else float("nan") for k in FIELDS}
    by_visit = {k: np.array([np.median([r[k] for r in rows]) for rows in several]) for k in ("step_s", "model_s")}
    typical = {f"{k}_median": float(np.median(v)) if v.size else float("nan") for k, v in by_visit.items()}
    return {
        "label": cell.label,
        "kind": cell.kind,
        "role": record["role"],
        "status": record["status"],
        **cell.row(),
        **summarize([r["step_s"] for r in pooled], "step_s"),
        "visits": len(several),
        "step_s_visits_sd": float(np.log(by_visit["step_s"]).std(ddof=1)) if len(several) > 1 else float("nan"),
        **medians,
        **typical,
    }


def _ratios(cells: list[dict[str, Any]], role: str) -> list[float]:
    """Median step time in `role` over that in the grid, for every composition measured in both."""
    grid = {c["label"]: c["step_s_median"] for c in cells if c["role"] == "grid" and c["step_s_n"]}
    return [c["step_s_median"] / grid[c["label"]] for c in cells if c["role"] == role and c["step_s_n"] and c["label"] in grid]
