"""Run many damaged inputs of one kind: what each ended with, how much of the processor it took, how much memory all of them needed.

    python -m tests.hostile.many KIND COUNT SEED
    python -m tests.hostile.many all SEED

prints the figures as JSON; of all kinds, fifty thousand inputs, those of each on a line and then their sum. A traceback, a refusal that
is not one line, a hang, a want of memory and a file left by a refusal are written down with the input's number, from which
`python -m tests.hostile.many KIND 1 SEED NUMBER` makes it again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from sim.errors import SimctlError, ending
from tests.cli import Result
from tests.hostile.all_kinds import KINDS

LONGEST_S = 20  # of the processor: on a loaded machine a sound question takes many times as long
WAITS = 6  # so many times as long by the clock, for what hangs without computing
MOST_BYTES = 1 << 30
OUT_OF_MEMORY = ("not enough memory", "nable to allocate")
PROGRESS = re.compile(r"^\d+(\.\d+)? s: .*\n", re.MULTILINE)  # of a plan on a busy machine
LEFT = (".tmp", ".old", ".probe", ".partial")
MOST = 4000  # inputs of a kind; fewer where one takes longest
MANY = {"traces": 2000, "metrics": 5000, "options": 2500, "posteriors": 2000, "fleets": 3000, "runs": 1000, "stores": 3000}


class TooLongError(BaseException):
    """Not an Exception: what catches errors of every kind, as those of a damaged file, must not take it for one."""


def many(kind: str, count: int, seed: int, first: int = 0) -> dict[str, Any]:
    """Figures of `count` inputs, from number `first` on: answered, refused, faults (a line each), slowest_s and peak_bytes."""
    found: dict[str, Any] = {"kind": kind, "inputs": count, "answered": 0, "refused": 0, "faults": [], "slowest_s": 0.0}
    for each in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(each, _too_long)
    for number in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            action = KINDS[kind](random.Random(f"{kind} {seed} {number}"), Path(folder))
            before = _names(folder)
            computed, _Alarm.from_s = _processor_s(), _run_s()
            # again, where a library's callback swallowed the first
            signal.setitimer(signal.ITIMER_PROF, LONGEST_S, 1)
            signal.setitimer(signal.ITIMER_REAL, WAITS * LONGEST_S, 1)
            faulthandler.dump_traceback_later(10 * WAITS * LONGEST_S + 40, exit=True, file=sys.__stderr__)  # where no signal gets through
            try:
                fault, refused = _tried(action)
            except TooLongError:
                fault, refused = _hung(), True
            finally:
                for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
                    signal.setitimer(timer, 0)
                faulthandler.cancel_dump_traceback_later()
            took_s = max(_processor_s() - computed, (_run_s() - _Alarm.from_s) / WAITS)
            more = _names(folder) - before
            left = sorted(more if refused else (name for name in more if name.endswith(LEFT)))
        found["slowest_s"] = max(found["slowest_s"], took_s)
        fault = fault or (_hung() if took_s > LONGEST_S else "") or (f"left {left} behind" if left else "")
        if fault:
            found["faults"].append(f"{kind} {seed} {number}: {fault}")
        else:
            found["refused" if refused else "answered"] += 1
    found["peak_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found


class _Alarm:
    from_s = 0.0  # by _run_s, when the input's turn began


def _run_s() -> float:
    """Seconds of the clock, less those that this process was ready and a busy machine did not run it (Linux says them)."""
    try:
        waited_s = int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        waited_s = 0.0
    return time.perf_counter() - waited_s


def _processor_s() -> float:
    """Of this process and of those that it waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _names(folder: str) -> set[str]:
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*")}


def _hung() -> str:
    return f"longer than {LONGEST_S} s"


def _tried(action: Any) -> tuple[str, bool]:
    """(what was wrong with the ending or "", whether the input was refused)."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            result = action()
    except (SimctlError, OSError) as error:
        code, text = ending(error)
        result = Result(code, "", f"simctl: {text}\n")
    except (KeyboardInterrupt, TooLongError):
        raise
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:100]} at {Path(where.filename).name}:{where.lineno}", True
    if said.getvalue():
        return f"said beside it: {said.getvalue()[:100]!r}", True
    if not isinstance(result, Result) or result.code == 0:
        return "", False
    result = result._replace(stderr=PROGRESS.sub("", result.stderr))
    if any(words in result.stderr for words in OUT_OF_MEMORY):
        return f"wants more memory than there may be: {result.stderr[:200]!r}", True
    if result.code == 1 and result.stdout and not re.search("^simctl: ", result.stderr, re.MULTILINE):
        return "", False  # the answer is no, with notes or without
    one = result.code in (1, 2) and result.stderr.startswith("simctl: ") and result.stderr.count("\n") == 1 and "\r" not in result.stderr
    return "" if one and len(result.stderr) < 2000 else f"not one line: {result.stderr[:200]!r}", True


def _too_long(number: int, frame: Any) -> None:
    if number == signal.SIGPROF or _run_s() - _Alarm.from_s >= WAITS * LONGEST_S:
        raise TooLongError


def _bound_memory() -> None:
    """No more than MOST_BYTES beside what a report's renderer maps as it starts, most of it never touched."""
    from simctl.report.page import _bundle

    _bundle()
    kib = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES + 1024 * kib,) * 2)


def alone(kind: str, count: int, seed: int) -> dict[str, Any]:
    """Figures of a process of its own, whose memory is limited and known. One that ends otherwise is a fault of its kind."""
    command = [sys.executable, "-W", "always", "-m", "tests.hostile.many", kind, str(count), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    if done.returncode != 0:
        fault = f"{kind} {seed}: ended with {done.returncode}: {done.stderr[-500:]}"
        return {"kind": kind, "inputs": count, "answered": 0, "refused": 0, "faults": [fault], "slowest_s": 0.0, "peak_bytes": 0}
    return dict(json.loads(done.stdout))


def of_all_kinds(seed: int) -> int:
    """Print the figures of every kind and their sum; the number of faults and of kinds beyond a limit."""
    found = []
    for kind in KINDS:
        found.append(alone(kind, MANY.get(kind, MOST), seed))
        print(json.dumps(found[-1]), flush=True)
    inputs, refused = (sum(each[name] for each in found) for name in ("inputs", "refused"))
    slowest_s, peak_bytes = (max(each[name] for each in found) for name in ("slowest_s", "peak_bytes"))
    faults = sum(len(each["faults"]) for each in found)
    print(
        f"{inputs} inputs of {len(found)} kinds, seed {seed}: {faults} faults, {refused} refused; "
        f"slowest {slowest_s:.1f} s, peak {peak_bytes / 2**30:.2f} GiB"
    )
    return faults + (slowest_s >= LONGEST_S) + (peak_bytes >= MOST_BYTES)


if __name__ == "__main__":
    if sys.argv[1] == "all":
        sys.exit(int(of_all_kinds(int(sys.argv[2])) > 0))
    _bound_memory()
    print(json.dumps(many(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *map(int, sys.argv[4:5]))))
