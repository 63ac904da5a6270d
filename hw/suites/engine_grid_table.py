"""What an engine-grid run leaves: its journal as one Dataset, and the gates that follow from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hw.cells import Cell
from hw.composition import FIELDS
from hw.spread import summarize
from hw.suites.engine_grid import PROTOCOL, WARM

CONTROLS = (("control_computed_over_placed", False), ("control_computed_over_placed_chunk", True))  # of the decode, of the chunk
ITERATION = {
    "cell_index": ("index into the cell dimension", "1"),
    "repeat": ("order within the cell", "1"),
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
    "batch": ("decoding sequences asked for", "1"),
    "context_tokens": ("cached tokens of each at the start, mean", "tokens"),
    "chunks": ("prefill chunks asked for", "1"),
    "chunk_tokens": ("tokens of each chunk", "tokens"),
    "offset_tokens": ("tokens cached before each chunk", "tokens"),
    "step_s_median": ("median step time of counted target iterations", "s"),
    "step_s_p25": ("lower quartile", "s"),
    "step_s_p75": ("upper quartile", "s"),
    "step_s_n": ("counted target iterations", "1"),
    "model_s_median": ("median model part", "s"),
    **{f"{name}_median": (f"median of counted target iterations: {text}", unit) for name, (text, unit) in FIELDS.items()},
}


def dataset(records: list[dict[str, Any]], attrs: dict[str, Any], suite: str = "engine-grid") -> Any:
    """The journal as an xarray Dataset with dims `iteration` and `cell`; gates that follow from the data become attributes."""
    import xarray as xr

    from hw.artifact import SCHEMA, table

    iterations, cells = [], []
    for index, record in enumerate(r for r in records if r["role"] != "warm"):
        iterations += [{"cell_index": index, **row} for row in record["rows"]]
        cells.append(_cell_row(record))
    derived = {
        "protocol": PROTOCOL if suite == "engine-grid" else f"{suite}/1 over {PROTOCOL}",
        **{
            name: next(iter(_ratios([c for c in cells if bool(c["chunks"]) == chunk], "control")), float("nan")) for name, chunk in CONTROLS
        },
        "drift_again_over_first": max(_ratios(cells, "again"), key=lambda r: abs(r - 1), default=float("nan")),
        "cells_ok": sum(c["status"] == "ok" for c in cells),
        "cells_failed": sum(c["status"] != "ok" for c in cells),
        "warmup_rule": f"first {WARM} iterations of a decode cell, first repeat of a chunk",
    }
    variables = table("iteration", iterations, ITERATION) | table("cell", cells, CELL)
    return xr.Dataset(variables, attrs={"schema": SCHEMA, "suite": suite, **derived, **attrs})


def _cell_row(record: dict[str, Any]) -> dict[str, Any]:
    cell = record["cell"]
    contexts, chunks = cell["contexts"], cell["chunks"]
    counted = [r for r in record["rows"] if r["target"] and not r["warmup"]]
    label = Cell(cell["kind"], tuple(contexts), tuple(map(tuple, chunks))).label
    medians = {f"{k}_median": float(np.median([r[k] for r in counted])) if counted else float("nan") for k in FIELDS}
    return {
        "label": label,
        "kind": cell["kind"],
        "role": record["role"],
        "status": record["status"],
        "batch": len(contexts),
        "context_tokens": float(np.mean(contexts)) if contexts else 0.0,
        "chunks": len(chunks),
        "chunk_tokens": chunks[0][1] if chunks else 0,
        "offset_tokens": chunks[0][0] if chunks else 0,
        **summarize([r["step_s"] for r in counted], "step_s"),
        **summarize([r["model_s"] for r in counted], "model_s"),
        **medians,
    }


def _ratios(cells: list[dict[str, Any]], role: str) -> list[float]:
    """Median step time in `role` over that in the grid, for every composition measured in both."""
    grid = {c["label"]: c["step_s_median"] for c in cells if c["role"] == "grid" and c["step_s_n"]}
    return [c["step_s_median"] / grid[c["label"]] for c in cells if c["role"] == role and c["step_s_n"] and c["label"] in grid]
