"""Text files of others, read: whatever is wrong with the bytes becomes one error that names the file."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from sim.errors import UsageError

Row = dict[str, str | None]


def utf8(path: str | Path, name: str) -> str:
    """The whole text. UsageError calling the file `name` when it is none, OSError when it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{name}: not UTF-8 text") from None


def csv_rows(text: str, name: str) -> tuple[tuple[str, ...], list[tuple[int, Row]]]:
    """(columns, (line number, row) of every row below them). UsageError naming the line that cannot be split into fields."""
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns = tuple(reader.fieldnames or ())
        return columns, [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise UsageError(f"{name}: line {reader.line_num}: {error}") from None
