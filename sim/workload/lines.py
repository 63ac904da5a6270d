"""Reading traces line by line in bounded memory, with line numbers for errors."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.files import text_of
from sim.json_text import read_json

MAX_LINE_BYTES = 64 * 2**20  # a prompt of 8M token ids fits; a file that is one endless line does not
MOST_INT = 2**1023  # made here: the compiler would make it again at every call


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without its line end) of the non-empty lines of a UTF-8 file; a byte-order mark is
    dropped.

    Raises UsageError for a line over MAX_LINE_BYTES (which is never read whole) or text that is not UTF-8; OSError as
    open() does.
    """
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                raise UsageError(f"{path.name}: line {number}: longer than {MAX_LINE_BYTES // 2**20} MiB")
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError:
                raise UsageError(f"{path.name}: line {number}: not UTF-8 text") from None
            if text:
                yield number, text


def numbered_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, JSON object) of a JSON-lines file. Raises UsageError for a line that is not one JSON object, a cut
    one included.
    """
    for number, text in numbered_lines(path):
        try:
            value = read_json(text, _DECODED)
        except ValueError as error:
            raise UsageError(f"{path.name}: line {number}: not a JSON object ({_reason(error)})") from None
        if not isinstance(value, dict):
            raise UsageError(f"{path.name}: line {number}: expected a JSON object, got {type(value).__name__}")
        yield number, value


def objects_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, JSON object) of a file that is one object over several lines, a list of them, or JSON lines. Errors as numbered_objects."""
    number, first = next(numbered_lines(path), (1, ""))
    try:
        lines = isinstance(read_json(first, _DECODED), dict)
    except ValueError:
        lines = False
    if lines:
        yield from ((f"line {number}", value) for number, value in numbered_objects(path))
        return
    try:
        whole = read_json(text_of(path, MAX_LINE_BYTES, path.name), _DECODED)
    except ValueError as error:
        raise UsageError(f"{path.name}: line {number}: not a JSON object ({_reason(error)})") from None
    for i, each in enumerate(whole if isinstance(whole, list) else [whole]):
        if not isinstance(each, dict):
            raise UsageError(f"{path.name}: item {i}: expected an object, got {type(each).__name__}")
        yield f"item {i}", each


def check_text(record: dict[str, Any], where: str) -> None:
    """Raises UsageError for a record with images, video or sound, whose tokens only simctl's own format can say."""
    if name := next((key for key in record if key.lower().startswith(("image", "video", "audio", "multi_modal"))), None):
        raise UsageError(f"{where}: {name}: prompts of this format are read as text; `images` are of --trace-format jsonl")


def whole_number(value: object, name: str, where: str) -> int:
    """`value` as an int. Raises UsageError unless it is a JSON whole number (True is not one)."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{where}: {name} must be a whole number, got {_show(value)}")
    return value


def number(value: object, name: str, where: str) -> float:
    """`value` as a float. Raises UsageError unless it is a JSON number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{where}: {name} must be a number, got {_show(value)}")
    return float("inf") if isinstance(value, int) and abs(value) >= MOST_INT else float(value)


def text(value: object, name: str, where: str) -> str:
    """`value` as a string; whole numbers are taken as names too. Raises UsageError for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise UsageError(f"{where}: {name} must be a string, got {_show(value)}")


def field(record: dict[str, Any], name: str, where: str) -> Any:
    """`record[name]`. Raises UsageError when it is missing."""
    if name not in record:
        raise UsageError(f"{where}: {name} is missing; the line has {', '.join(sorted(record)) or 'nothing'}")
    return record[name]


def csv_cells(line: str, where: str) -> list[str]:
    """The cells of one CSV line. Raises UsageError for a line that cannot be split."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise UsageError(f"{where}: not CSV ({error})") from None


def csv_int(cell: str, name: str, where: str) -> int:
    """A CSV cell as an int. Raises UsageError otherwise."""
    try:
        return int(cell)
    except ValueError:
        raise UsageError(f"{where}: {name} must be a whole number, got {_show(cell)}") from None


def csv_float(cell: str, name: str, where: str) -> float:
    """A CSV cell as a float (NaN passes: the builder refuses it by name). Raises UsageError otherwise."""
    try:
        return float(cell)
    except ValueError:
        raise UsageError(f"{where}: {name} must be a number, got {_show(cell)}") from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


_DECODED = json.JSONDecoder(parse_constant=_no_constant).decode  # made once: making it takes longer than decoding a line


def _reason(error: Exception) -> str:
    return getattr(error, "msg", None) or str(error) or type(error).__name__


def _show(value: object) -> str:
    short = repr(value)
    return short if len(short) <= 40 else short[:37] + "..."
