"""Several jobs: each child is told exactly its job, the next one is started ahead but waits, and the worst exit status comes back."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click.testing
import pytest

from hw import command, processes
from hw.jobs import Job

JOBS = [
    Job("served", "cpu", "tiny-25m", None, 30.0, 3, rates=(0.5, 1.5), experiments=("open*", "burst"), max_num_seqs=16, engine="llamacpp"),
    Job("engine-grid", "cpu", "qwen2.5-7b", "fp8", None, 0, max_num_batched_tokens=512, fast_start=True, tensor_parallel=2),
    Job("floor", "cpu", None, None, None, 7),
    Job("products", "cpu", budget_s=4.0, models=("llama3.1-8b", "qwen3-14b"), label="two"),
]
CHILD = "import sys\nlog = open(sys.argv[1], 'a', buffering=1)\nif sys.stdin.readline():\n  log.write('begin ' + sys.argv[2] + '\\n')\n  log.write('end ' + sys.argv[2] + '\\n')\nsys.exit(int(sys.argv[3]))"  # noqa: E501


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.suite)
def test_the_child_is_told_exactly_this_job(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Job, Path, bool]] = []
    monkeypatch.setattr(command, "run", lambda found, out, resume: seen.append((found, out, resume)) or [])
    result = click.testing.CliRunner().invoke(command.command, processes.arguments(job, tmp_path, resume=True))
    assert result.exception is None, result.output
    assert seen == [(job, tmp_path, True)]


def pretend(tmp_path: Path, codes: dict[int, int]):  # type: ignore[no-untyped-def]
    started: list[subprocess.Popen[str]] = []

    def start(job: Job, out: Path, resume: bool) -> subprocess.Popen[str]:
        call = [sys.executable, "-c", CHILD, str(tmp_path / "log"), str(job.seed), str(codes.get(job.seed, 0))]
        started.append(subprocess.Popen(call, stdin=subprocess.PIPE, text=True))
        return started[-1]

    return start, started


def test_jobs_do_not_overlap_and_a_failure_does_not_stop_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = pretend(tmp_path, {1: 2, 2: 1})
    monkeypatch.setattr(processes, "_start", start)
    assert processes.run_each([Job("floor", "cpu", seed=n) for n in (1, 2, 3)], tmp_path) == 2
    assert (tmp_path / "log").read_text().split("\n")[:-1] == [f"{what} {n}" for n in (1, 2, 3) for what in ("begin", "end")]
    assert len(started) == 3


def test_an_interrupted_parent_ends_the_child_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = pretend(tmp_path, {})
    monkeypatch.setattr(processes, "_start", start)

    def interrupted(self: subprocess.Popen[str], timeout: float | None = None) -> int:
        if self is started[0] and timeout is None:
            raise KeyboardInterrupt
        return wait(self, timeout)

    wait = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        processes.run_each([Job("floor", "cpu", seed=n) for n in (1, 2)], tmp_path)
    monkeypatch.undo()
    assert started[1].poll() is not None
    assert "2" not in ((tmp_path / "log").read_text() if (tmp_path / "log").exists() else "")
    started[0].wait()


PARENT = """
import signal, subprocess, sys
from pathlib import Path
from hw import processes
from hw.jobs import Job

CHILD = '''
import signal, sys, time
log = open(sys.argv[1], "a", buffering=1)
def stop(*_):
    time.sleep(0.5)
    log.write("kept " + sys.argv[2] + chr(10))
    sys.exit(130)
if sys.stdin.readline():
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    log.write("begin " + sys.argv[2] + chr(10))
    for _ in range(600):  # naps: a signal that comes right before a sleep begins is only looked at when it ends
        time.sleep(0.1)
'''
def start(job, out, resume):
    return subprocess.Popen([sys.executable, "-c", CHILD, sys.argv[1], str(job.seed)], stdin=subprocess.PIPE, text=True)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored
processes._start = start
try:
    code = processes.run_each([Job("floor", "cpu", seed=n) for n in (1, 2)], Path("."))
except KeyboardInterrupt:
    code = 77
sys.exit(code)
"""


@pytest.mark.parametrize(("sign", "whole_group", "code"), [(signal.SIGTERM, False, 130), (signal.SIGINT, True, 77)])
def test_an_ending_waits_for_what_the_running_child_keeps(sign: int, whole_group: bool, code: int, tmp_path: Path) -> None:
    """A termination signal comes to the parent alone, Ctrl-C to parent and child."""
    log = tmp_path / "log"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(log)], start_new_session=True)
    for _ in range(600):
        if log.exists() and "begin 1" in log.read_text():
            break
        time.sleep(0.05)
    (os.killpg if whole_group else os.kill)(parent.pid, sign)
    try:
        assert parent.wait(60) == code
    finally:
        parent.kill()
        parent.wait()
    assert log.read_text().splitlines() == ["begin 1", "kept 1"]
