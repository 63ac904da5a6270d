"""Cells to measure from a file, as `simctl calibrate --budget --cells-out` writes it or by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hw.cells import Cell
from sim.errors import UsageError

SCHEMA = "simctl-cells/1"
KINDS = ("decode", "ragged", "prefill", "packed", "mixed")
MOST_CELLS, MOST_BYTES = 10_000, 1 << 26


def read_cells(path: Path) -> tuple[str | None, list[Cell]]:
    """(model shape the cells were chosen for, or None; the cells, in order). Raises UsageError naming the file and the cell at fault.

    JSON: {"schema": "simctl-cells/1", "model": NAME, "cells": [CELL, ...]}, a CELL being
    {"kind": ..., "contexts": [tokens, ...], "chunks": [[offset, tokens], ...]}.
    """
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(f"{path.name}: larger than {MOST_BYTES} bytes: not a cells file")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name}: not JSON ({error})") from None
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise UsageError(
            f"{path.name}: not a cells file (schema {body.get('schema') if isinstance(body, dict) else None!r}, want {SCHEMA!r})"
        )
    rows = body.get("cells")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_CELLS:
        raise UsageError(f"{path.name}: cells: needs a list of 1 to {MOST_CELLS} cells")
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise UsageError(f"{path.name}: model: needs a name")
    return model, [_cell(path.name, i, row) for i, row in enumerate(rows)]


def _cell(name: str, index: int, row: Any) -> Cell:
    where = f"{name}: cells[{index}]"
    if not isinstance(row, dict) or row.get("kind") not in KINDS:
        raise UsageError(f"{where}: kind is none of {', '.join(KINDS)}")
    contexts, chunks = row.get("contexts", []), row.get("chunks", [])
    if not isinstance(contexts, list) or not all(_count(c, 1) for c in contexts):
        raise UsageError(f"{where}: contexts: needs a list of token counts")
    if not isinstance(chunks, list) or not all(isinstance(c, list) and len(c) == 2 and _count(c[0], 0) and _count(c[1], 1) for c in chunks):
        raise UsageError(f"{where}: chunks: needs a list of [offset, tokens]")
    if len({tuple(c) for c in chunks}) > 1:
        raise UsageError(f"{where}: chunks: must be equal to each other")
    if not contexts and not chunks:
        raise UsageError(f"{where}: neither contexts nor chunks: an empty iteration")
    return Cell(row["kind"], tuple(contexts), tuple((int(o), int(t)) for o, t in chunks))


def _count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= 1 << 24
