"""A job's file holds what was done however it ends; several jobs run one after the other, each in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click.testing
import pytest

from hw import jobs
from hw.artifact import load
from hw.command import command
from hw.jobs import Job
from hw.suites import engine_grid, floor
from sim.errors import SimctlError, UsageError
from tests.hw.test_grid_runs_are_kept_resumed_and_marked import PretendEngine

CELLS = '{"schema": "simctl-cells/1", "cells": [{"kind": "prefill", "chunks": [[0, 64]]}, {"kind": "decode", "contexts": [100, 100]}]}'


class Started(PretendEngine):
    closed, max_model_len = False, 4096


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Started:
    made = Started()

    @contextmanager
    def running(job: Job, attrs: dict[str, Any]) -> Any:
        attrs["engine"] = "pretend"
        try:
            yield made
        finally:
            made.closed = True

    monkeypatch.setattr(engine_grid.vllm_inprocess, "running", running)
    monkeypatch.setattr(floor, "measure", lambda device, quick: [])
    return made


def of_cells(tmp_path: Path) -> Job:
    (tmp_path / "two.json").write_text(CELLS)
    return Job("engine-grid", "cpu", "tiny-25m", max_num_batched_tokens=512, cells=str(tmp_path / "two.json"))


def test_a_whole_run_says_what_it_ran_on_and_leaves_no_journal(engine: Started, tmp_path: Path) -> None:
    (path,) = jobs.run(of_cells(tmp_path), tmp_path)
    attrs = load(path, "engine-grid").attrs
    assert (attrs["engine"], attrs["finished"], attrs["model"], attrs["weight_dtype"]) == ("pretend", 1, "tiny-25m", "float32")
    assert attrs["measuring_s"] >= 0
    assert engine.closed
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, "two.json"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), SystemExit(1)])
def test_a_run_that_ends_early_keeps_what_it_has_and_is_gone_on_with(engine: Started, tmp_path: Path, failure: BaseException) -> None:
    engine.fails = {2: failure}  # type: ignore[dict-item]
    with pytest.raises(type(failure)):
        jobs.run(of_cells(tmp_path), tmp_path)
    kept = load(tmp_path / "engine-grid_tiny-25m.nc")
    assert (kept.attrs["finished"], kept.label.values.tolist(), engine.closed) == (0, ["prefill:0+1x64@0"], True)
    engine.fails = {}
    (path,) = jobs.run(of_cells(tmp_path), tmp_path, resume=True)
    assert load(path).attrs["finished"] == 1
    assert {"decode:2x100", "prefill:0+1x64@0"} <= set(load(path).label.values.tolist())
    (tmp_path / "engine-grid_tiny-25m.journal.jsonl").write_text('{"header": {"seed": 9}}\n')
    with pytest.raises(UsageError, match="holds another run"):
        jobs.run(of_cells(tmp_path), tmp_path, resume=True)


def test_a_run_that_measured_nothing_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown model shape"):
        jobs.run(Job("engine-grid", "cpu", "no-such-shape"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_each_job_has_a_process_of_its_own_and_a_failure_does_not_stop_the_rest(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--hw", "cpu", "--suite", "host,floor", "-o", str(tmp_path), "--budget-s", "1"]
    (tmp_path / "host.nc").mkdir()  # where a file should go
    result = click.testing.CliRunner().invoke(command, options)
    assert result.exit_code == 2
    assert load(tmp_path / "floor.nc", "floor").attrs["finished"] == 1
    assert "host: " in result.stderr


def test_what_a_job_raises_comes_back_and_its_words_go_to_the_log(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown model shape 'no-such-shape'"):
        jobs.run_apart(Job("engine-grid", "cpu", "no-such-shape"), tmp_path, log=tmp_path / "logs" / "job.log")
    (path,) = jobs.run_apart(Job("floor", "cpu"), tmp_path, log=tmp_path / "logs" / "job.log")
    assert path == tmp_path / "floor.nc"
    assert "floor: " in (tmp_path / "logs" / "job.log").read_text()


def test_a_process_that_dies_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_child", os.abort)
    with pytest.raises(SimctlError, match="measuring floor: the process died"):
        jobs.run_apart(Job("floor", "cpu"), tmp_path)


PARENT = """
import signal, sys, time
from pathlib import Path
from hw import jobs

log = Path(sys.argv[1])

def slow(job, out, *, resume=False):
    from hw.pace import terminate_as_interrupt
    with terminate_as_interrupt(), log.open("a", buffering=1) as file:
        file.write("begin\\n")
        try:
            for _ in range(600):  # naps: a signal that comes right before a sleep begins is only looked at when it ends
                time.sleep(0.1)
        finally:
            time.sleep(0.5)
            file.write("kept\\n")

jobs.run = slow  # in the child too: it imports this file
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored
    try:
        jobs.run_apart(jobs.Job("floor", "cpu"), Path("."))
    except KeyboardInterrupt:
        sys.exit(77)
"""


@pytest.mark.parametrize(("sign", "whole_group"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_an_ending_waits_for_what_the_running_job_keeps(sign: int, whole_group: bool, tmp_path: Path) -> None:
    """A termination signal comes to the parent alone, Ctrl-C to parent and child."""
    log, program = tmp_path / "log", tmp_path / "parent.py"
    program.write_text(PARENT)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, str(program), str(log)], start_new_session=True, env=environment)
    for _ in range(1200):
        if log.exists() and "begin" in log.read_text():
            break
        time.sleep(0.05)
    (os.killpg if whole_group else os.kill)(parent.pid, sign)
    try:
        assert parent.wait(60) == 77
    finally:
        parent.kill()
        parent.wait()
    assert log.read_text().splitlines() == ["begin", "kept"]


def test_a_plan_says_what_would_be_measured_and_how_long_it_takes(tmp_path: Path) -> None:
    options = ["--hw", "cpu", "--suite", "floor,engine_grid", "--model", "tiny-25m", "--budget-s", "20", "-o", str(tmp_path), "--dry-run"]
    result = click.testing.CliRunner().invoke(command, options)
    assert result.exception is None, result.output
    lines = result.output.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["floor", "engine-grid_tiny-25m"]
    assert lines[1].endswith("about 40 s: 20 to start, 20 measuring")
    assert lines[2] == "in all about 45 s"
    assert list(tmp_path.iterdir()) == []
