"""Tuning runs of dense decode: what each way to walk a cache takes over the best library backend, by tokens in the batch."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from kernels.report_table import context_text, markdown

CLASSES = (("to 256K", 0, 2**18), ("512K to 1M", 2**18 + 1, 2**20), ("from 2M", 2**20 + 1, 2**62))


@dataclass(frozen=True)
class Tuning:
    """One run: rows as `kernels.tune_dense` left them."""

    name: str
    rows: list[dict[str, str]]


def load(path: Path) -> Tuning:
    with path.open() as file:
        return Tuning(path.stem, list(csv.DictReader(file)))


def _ratios(t: Tuning) -> dict[str, dict[tuple[int, int], float]]:
    """Time over the library's by variant and (batch, context)."""
    found: dict[str, dict[tuple[int, int], float]] = {}
    for r in t.rows:
        if r["variant"] != "library":
            found.setdefault(r["variant"], {})[int(r["batch"]), int(r["context"])] = float(r["over_library"])
    return found


def variants(t: Tuning) -> str:
    """Per variant: geometric means of its time over the library's by tokens in the batch, its worst, in how many cells it is no slower."""
    out = []
    for name, ratios in _ratios(t).items():
        line: list[object] = [name]
        for _, low, high in CLASSES:
            logs = [math.log(ratio) for (batch, context), ratio in ratios.items() if low <= batch * context <= high]
            line.append(f"{math.exp(sum(logs) / len(logs)):.3f}" if logs else "")
        out.append([*line, f"{max(ratios.values()):.3f}", f"{sum(ratio <= 1 for ratio in ratios.values())} of {len(ratios)}"])
    return markdown(["variant", *(name for name, *_ in CLASSES), "worst", "no slower"], out)


def by_cell(t: Tuning) -> str:
    """Time over the library's of every variant in every cell, by tokens in the batch."""
    ratios = _ratios(t)
    cells = sorted({cell for found in ratios.values() for cell in found}, key=lambda cell: (cell[0] * cell[1], cell))
    rows = [[name, *(f"{found[cell]:.3f}" if cell in found else "" for cell in cells)] for name, found in ratios.items()]
    return markdown(["variant", *(f"{batch} x {context_text(context)}" for batch, context in cells)], rows)


SECTIONS = {"tuning": variants, "tuning_cells": by_cell}
