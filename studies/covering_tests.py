"""Pytest plugin of studies.mutants: which functions of the source each test calls, and the fingerprint of the formula before a mutant.

    MUTANTS_RECORD=FILE.json python -m pytest -p studies.covering_tests TESTS...

writes, for each test that passes, the seconds of the processor that it took and the functions that it and its fixtures called. A result
that an earlier test of the same run remembered is the earlier one's: functions are called by at least one of those that need them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

RECORD, FINGERPRINT = "MUTANTS_RECORD", "MUTANTS_FINGERPRINT"
ROOT = Path(__file__).parents[1]


class Covering(NamedTuple):
    """A test, how long it takes, and what it calls: (file, its first line, its last)."""

    name: str
    seconds: float
    calls: frozenset[tuple[str, int, int]]


def recorded(path: Path) -> list[Covering]:
    """Tests of a file that this plugin wrote, quickest first."""
    rows = json.loads(path.read_text())
    return sorted((Covering(name, seconds, frozenset(map(tuple, calls))) for name, seconds, calls in rows), key=lambda test: test.seconds)


def covering(tests: Sequence[Covering], file: str, line: int) -> list[Covering]:
    """Those that call the innermost function around a line; of a line outside functions, or of one never called, none."""
    around = {call for test in tests for call in test.calls if call[0] == file and call[1] <= line <= call[2]}
    if not around:
        return []
    inner = max(around, key=lambda call: call[1])
    return [test for test in tests if inner in test.calls]


class _Recorder:
    """Functions called, by code, since the last test began."""

    def __init__(self, path: Path) -> None:
        self.path, self.seen, self.rows = path, set[CodeType](), list[tuple[str, float, list[Any]]]()
        self.passed: set[str] = set()

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        self.seen.add(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.seen.clear()
        begun = time.process_time()
        sys.settrace(self._called)
        threading.settrace(self._called)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.rows.append((item.nodeid, time.process_time() - begun, sorted(filter(None, map(_place, self.seen)))))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps([row for row in self.rows if row[0] in self.passed]))


def _place(code: CodeType) -> tuple[str, int, int] | None:
    """Where a function of the source stands."""
    path = Path(code.co_filename)
    if not path.is_relative_to(ROOT) or path.is_relative_to(ROOT / "tests"):
        return None
    last = max((line for *_, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    return path.relative_to(ROOT).as_posix(), code.co_firstlineno, last


def pytest_configure(config: pytest.Config) -> None:
    """Pin the fingerprint before anything asks for it; record where asked to."""
    if path := os.environ.get(RECORD):
        config.pluginmanager.register(_Recorder(Path(path)))
    if pinned := os.environ.get(FINGERPRINT):
        from sim.rates import fingerprint

        fingerprint.formula_fingerprint = fingerprint.kept_fingerprint = lambda: pinned  # type: ignore[assignment]


def pytest_sessionstart() -> None:
    """Properties as drawn alike every time, and found false without a search for a smaller example: that takes minutes in plain Python."""
    from hypothesis import Phase, settings

    settings.register_profile("mutants", settings.default, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate))
    settings.load_profile("mutants")
