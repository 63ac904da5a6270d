"""An append-only record of finished cells: what a run cut short leaves behind, and what a resumed run skips."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sim.errors import UsageError


class Journal:
    """JSON lines at `path`, one per finished cell, flushed to disk before the next cell starts.

    The file is made by the first cell: a run refused before that leaves nothing. With `resume` the cells already there are kept;
    otherwise an existing file is replaced. A last line cut off mid-write is dropped.
    Raises UsageError when resuming a journal of another run (its header differs).
    """

    def __init__(self, path: Path, header: dict[str, Any], *, resume: bool = False) -> None:
        self.path = path
        header = json.loads(json.dumps(header))  # as it will be read back: tuples become lists
        self.records: list[dict[str, Any]] = []
        if resume and path.exists():
            lines = _whole_lines(path)
            if lines and lines[0].get("header") != header:
                raise UsageError(f"{path}: cannot resume, it holds another run: {lines[0].get('header')}")
            self.records = lines[1:]
        self._header = header
        self._made = False

    def __contains__(self, key: str) -> bool:
        return any(r["key"] == key for r in self.records)

    def add(self, key: str, **content: Any) -> None:
        """Append one finished cell. Raises OSError (disk full, say); what was written before stays whole."""
        record = {"key": key, **content}
        try:
            if not self._made:
                self._make()
            with self.path.open("a") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self.records.append(record)

    def _make(self) -> None:
        temporary = self.path.with_suffix(self.path.suffix + ".tmp")
        temporary.write_text("".join(json.dumps(r) + "\n" for r in [{"header": self._header}, *self.records]))
        os.replace(temporary, self.path)
        self._made = True


def read_journal(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(header, records) of a journal file. Raises UsageError when it is not one."""
    lines = _whole_lines(path)
    if not lines or "header" not in lines[0]:
        raise UsageError(f"{path}: not a measurement journal")
    return lines[0]["header"], lines[1:]


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines()
    parsed = []
    for number, line in enumerate(lines):
        try:
            parsed.append(json.loads(line))
        except json.JSONDecodeError:
            if number != len(lines) - 1:
                raise UsageError(f"{path}: line {number + 1} is damaged") from None
    return parsed
