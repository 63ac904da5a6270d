"""Run many damaged inputs of one kind: what each ended with, how long it took, how much memory all of them needed.

    python -m tests.hostile.many KIND COUNT SEED

prints the figures as JSON. A traceback, an answer to bad input without one line, or a hang is written down with the input's number, from
which `python -m tests.hostile.many KIND 1 SEED NUMBER` makes it again.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from sim.errors import SimctlError, ending
from tests.cli import Result
from tests.hostile.kinds import KINDS

LONGEST_S = 20
MOST_BYTES = 1 << 30


def many(kind: str, count: int, seed: int, first: int = 0) -> dict[str, Any]:
    """Figures of `count` inputs, from number `first` on: answered, refused, faults (a line each), slowest_s and peak_bytes."""
    found: dict[str, Any] = {"kind": kind, "inputs": count, "answered": 0, "refused": 0, "faults": [], "slowest_s": 0.0}
    signal.signal(signal.SIGALRM, _too_long)
    for number in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            action = KINDS[kind](random.Random(f"{kind} {seed} {number}"), Path(folder))
            begun = time.perf_counter()
            signal.alarm(LONGEST_S)
            try:
                fault, refused = _tried(action)
            finally:
                signal.alarm(0)
            left = [path.name for path in Path(folder).rglob("*") if path.name.endswith((".tmp", ".probe"))]
        found["slowest_s"] = max(found["slowest_s"], time.perf_counter() - begun)
        fault = fault or (f"left {left} behind" if left else "")
        if fault:
            found["faults"].append(f"{kind} {seed} {number}: {fault}")
        else:
            found["refused" if refused else "answered"] += 1
    found["peak_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found


def _tried(action: Any) -> tuple[str, bool]:
    """(what was wrong with the ending or "", whether the input was refused)."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            result = action()
    except (SimctlError, OSError) as error:
        code, text = ending(error)
        result = Result(code, "", f"simctl: {text}\n")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:100]} at {Path(where.filename).name}:{where.lineno}", True
    if said.getvalue():
        return f"said beside it: {said.getvalue()[:100]!r}", True
    if not isinstance(result, Result) or result.code == 0:
        return "", False
    one = result.stderr.startswith("simctl: ") and result.stderr.count("\n") == 1 and "\r" not in result.stderr
    return "" if one and len(result.stderr) < 2000 else f"not one line: {result.stderr[:200]!r}", True


def _too_long(number: int, frame: Any) -> None:
    raise TimeoutError(f"longer than {LONGEST_S} s")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    print(json.dumps(many(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *map(int, sys.argv[4:5]))))
