"""Decode step times over batch as a plain CSV of curves, the form `simctl knees` reads: `python -m hw.curves FILE... > curves.csv`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from hw.artifact import load

COLUMNS = ("model", "gpu", "weight_dtype", "context_tokens", "batch", "step_s")


def curve_rows(path: Path) -> list[dict[str, Any]]:
    """One row of COLUMNS per counted decode cell of the grid in a measurement file, by context and batch.

    A context measured at fewer than two batches, or not at batch 1, is no curve and is left out.
    """
    data = load(path)
    kinds, roles = data.kind.values.astype(str), data.role.values.astype(str)
    counted = (kinds == "decode") & (roles == "grid") & (data.step_s_n.values > 0)
    rows: list[dict[str, Any]] = [
        {
            "model": data.attrs["model"],
            "gpu": data.attrs["gpu_name"],
            "weight_dtype": data.attrs["weight_dtype"],
            "context_tokens": round(float(data.context_tokens.values[i])),
            "batch": int(data.batch.values[i]),
            "step_s": f"{float(data.step_s_median.values[i]):.7g}",
        }
        for i in counted.nonzero()[0]
    ]
    rows = [r for r in rows if _is_curve([q["batch"] for q in rows if q["context_tokens"] == r["context_tokens"]])]
    return sorted(rows, key=lambda r: (r["context_tokens"], r["batch"]))


def _is_curve(batches: list[int]) -> bool:
    return 1 in batches and len(set(batches)) > 1


def write_curves(paths: Sequence[Path], out: TextIO) -> None:
    """The curves of several files, one CSV."""
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for path in paths:
        writer.writerows(curve_rows(path))


if __name__ == "__main__":
    write_curves([Path(argument) for argument in sys.argv[1:]], sys.stdout)
