"""Tables of others, read: a line that is none becomes one error that names the file."""

from __future__ import annotations

import csv
import io

from sim.errors import UsageError
from sim.json_text import MOST_VALUES

Row = dict[str, str | None]


def csv_rows(text: str, name: str) -> tuple[tuple[str, ...], list[tuple[int, Row]]]:
    """(columns, (line number, row) of every row below them). UsageError naming the line that cannot be split into fields."""
    if text.count(",") + 16 * text.count("\n") > MOST_VALUES:
        raise UsageError(f"{name}: more than {MOST_VALUES:,} values")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns = tuple(reader.fieldnames or ())
        return columns, [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise UsageError(f"{name}: line {reader.line_num}: {error}") from None
