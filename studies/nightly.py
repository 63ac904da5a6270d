"""Nightly run: the checks that take hours, one after the other, and one table of what they said, by date.

    python -m studies.nightly [STEP...] [--hours H] [--list]

Each step is a command of this checkout; its output goes to out/nightly/STEP.log. The table in docs/log/nightly.md has a line for each step
that was ever run, with the date and the commit that it was run at; a step of this run replaces its line. Seeds are the day's. Exit code 1
where a step fails.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from sim.errors import UsageError
from sim.files import made_folder, write_text
from studies.program import program

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "log" / "nightly.md"
LOGS = ROOT / "out" / "nightly"
HEAD = """# Nightly checks

`make nightly` runs them and writes this table. A line is the last run of its check, at the commit that it names.

| check | date | commit | minutes | result | its last line |
| --- | --- | --- | --- | --- | --- |
"""


class Row(NamedTuple):
    """A line of the table."""

    step: str
    date: str
    commit: str
    minutes: str
    result: str
    said: str


def steps(seed: int) -> dict[str, str]:
    """Command by step; `seed` is the day's."""
    python = sys.executable
    return {
        "test-all": "make test-all",
        "vllm": "make test-vllm",
        "sglang": "make test-sglang",
        "hostile": f"{python} -m tests.hostile.many all {seed}",
        "sbc-0": f"{python} -m studies.sbc --seed {seed}",
        "sbc-1": f"{python} -m studies.sbc --seed {seed + 1}",
        "accuracy": f"{python} -m pytest -q tests/docs/test_accuracy_page_is_what_the_scores_say.py",
        "mutants": f"{python} -m studies.mutants --of meaning --seed {seed}",
    }


def rows_of(text: str) -> dict[str, Row]:
    """Lines of a table by step."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == len(Row._fields) and cells[0] not in ("check", "---"):
            found[cells[0]] = Row(*cells)
    return found


def table_of(rows: dict[str, Row]) -> str:
    """The page."""
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows.values())


def run(step: str, command: str, seconds: float) -> Row:
    """Run a step for so long at most."""
    begin, log = time.monotonic(), LOGS / f"{step}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(command, shell=True, cwd=ROOT, stdout=sink, stderr=sink, start_new_session=True)
        try:
            code = process.wait(seconds)
        except BaseException as stop:
            os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
            process.wait()
            if not isinstance(stop, subprocess.TimeoutExpired):
                raise
            code = -1
    minutes = (time.monotonic() - begin) / 60
    result = "passed" if code == 0 else "out of time" if code == -1 else f"failed ({code})"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return Row(step, datetime.now(UTC).strftime("%Y-%m-%d"), commit, f"{minutes:.0f}", result, last_line(log.read_text(errors="replace")))


def last_line(text: str) -> str:
    """The last line that says something, short enough for a cell."""
    lines = [re.sub(r"[|=`]+", " ", line).strip() for line in text.splitlines()]
    return next((" ".join(line.split())[:100] for line in reversed(lines) if line), "")


@program("studies.nightly")
def main(argv: Sequence[str]) -> int:
    """Run the steps and write the table after each."""
    parser = argparse.ArgumentParser(prog="studies.nightly")
    known = steps(int(datetime.now(UTC).strftime("%Y%m%d")))
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(known)}; none: all")
    parser.add_argument("--hours", type=float, default=6.0, help="of one step at most")
    parser.add_argument("--list", action="store_true", help="print the commands instead")
    given = parser.parse_args(argv)
    if unknown := sorted(set(given.steps) - set(known)):
        raise UsageError(f"unknown step {unknown[0]!r}; known: {', '.join(known)}")
    chosen = {name: known[name] for name in given.steps or known}
    if given.list:
        print("\n".join(f"{name}: {command}" for name, command in chosen.items()))
        return 0
    made_folder(LOGS)
    failed = False
    for name, command in chosen.items():
        row = run(name, command, given.hours * 3600.0)
        failed |= row.result != "passed"
        print(" | ".join(row), flush=True)
        rows = (rows_of(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}) | {name: row}
        write_text(TABLE, table_of({each: rows[each] for each in known if each in rows}))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
