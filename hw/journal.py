"""An append-only record of finished cells: what a run cut short leaves behind, and what a resumed run skips."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.files import write_text


class Journal:
    """JSON lines at `path`, one per finished cell, flushed to disk before the next cell starts.

    The file is made by the first cell: a run refused before that leaves nothing. With `resume` the cells already there are kept;
    otherwise an existing file is replaced. A last line cut off mid-write is dropped.
    Raises UsageError when resuming a journal of another run (its header differs).
    """

    def __init__(self, path: Path, header: dict[str, Any], *, resume: bool = False) -> None:
        self.path = path
        self._header = json.loads(json.dumps(header))  # as it will be read back: tuples become lists
        self._made = False
        self.records: list[dict[str, Any]] = []
        if resume and path.exists():
            lines = _whole_lines(path)
            if lines and lines[0].get("header") != self._header:
                raise UsageError(f"{path}: cannot resume, it holds another run: {lines[0].get('header')}")
            self.records = lines[1:]

    def __contains__(self, key: str) -> bool:
        return any(r["key"] == key for r in self.records)

    def add(self, key: str, **content: Any) -> None:
        """Append one finished cell. Raises OSError naming the file (disk full, say); what was written before stays whole."""
        record = {"key": key, **content}
        try:
            if not self._made:
                write_text(self.path, "".join(json.dumps(r) + "\n" for r in [{"header": self._header}, *self.records]))
                self._made = True
            with self.path.open("a") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), str(self.path)) from error
        self.records.append(record)


def attempt(call: Callable[[], Any]) -> tuple[Any, str, str]:
    """(result, status, error) of measuring one cell: "ok", or None with "oom" or "error" and what was said. The sweep goes on."""
    try:
        return call(), "ok", ""
    except Exception as failure:  # whatever an engine or a device raises is kept; KeyboardInterrupt is not caught
        text = f"{type(failure).__name__}: {failure}"
        return None, "oom" if "out of memory" in text.lower() else "error", text[:300]


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
