"""Read the packaged reference tables: published facts as CSV, one folder per source."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

from sim.errors import UsageError

Row = dict[str, str]


@cache
def table(source: str, name: str) -> tuple[Row, ...]:
    """Rows of scenarios/data/reference/<source>/<name>.csv; values stay text, blanks mean not stated."""
    path = files("scenarios") / "data" / "reference" / source / f"{name}.csv"
    try:
        return tuple(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except FileNotFoundError:
        raise UsageError(f"no reference table {source}/{name}") from None
