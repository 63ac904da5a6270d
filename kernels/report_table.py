"""A run of the benchmark as a table to report from, and how its values are written."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernels.results import TEXT, Row

M = 2**20


@dataclass(frozen=True)
class Table:
    """One run: attributes and rows, numbers as floats."""

    name: str
    attributes: dict[str, str]
    rows: list[Row]

    def pick(self, **want: object) -> list[Row]:
        """Timed rows whose columns equal `want`; a callable is a predicate."""
        return [
            r for r in self.rows
            if r["median"] == r["median"] and all(w(r[c]) if callable(w) else r[c] == w for c, w in want.items())
        ]  # fmt: skip

    def value(self, column: str = "median", **want: object) -> float | None:
        found = self.pick(**want)
        return float(found[0][column]) if found else None  # type: ignore[arg-type]


def load(path: Path) -> Table:
    """A table as `kernels.results.write` left it."""
    lines = path.read_text().splitlines()
    head = [line for line in lines if line.startswith("# ")]
    attributes = dict(line[2:].split(": ", 1) for line in head)
    rows = [{k: v if k in TEXT else float(v) for k, v in r.items()} for r in csv.DictReader(lines[len(head) :])]
    return Table(path.stem, attributes, rows)  # type: ignore[arg-type]


def context_text(tokens: float) -> str:
    """8192 as 8K, 2^20 as 1M."""
    n = int(tokens)
    return f"{n // M}M" if n >= M and n % M == 0 else f"{n / 1024:.4g}K"


def time_text(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.2f} us"


def markdown(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A markdown table."""
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in r) + " |" for r in rows])


def cells(t: Table, suite: str) -> list[tuple[float, float]]:
    """(batch, context) of a suite in order."""
    return sorted({(r["batch"], r["context"]) for r in t.pick(suite=suite)})  # type: ignore[type-var]


def best_of(t: Table, prefix: str, batch: float, context: float) -> Row | None:
    """The fastest dense row whose variant begins with `prefix`: sdpa or fa3."""
    found = t.pick(suite="dense", batch=batch, context=context, variant=lambda v: v.startswith(prefix))
    return min(found, key=lambda r: r["median"]) if found else None  # type: ignore[arg-type,return-value]


def best_dense(t: Table, batch: float, context: float) -> float | None:
    found = [float(r["median"]) for r in t.pick(suite="dense", batch=batch, context=context)]  # type: ignore[arg-type]
    return min(found) if found else None


def share_text(r: Row) -> str:
    """The row's share of its floor in percent, empty where it has none."""
    share = float(r["of_floor"])  # type: ignore[arg-type]
    return "" if share != share else f"{share * 100:.1f} %"
