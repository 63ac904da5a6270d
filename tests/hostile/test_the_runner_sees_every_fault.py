"""A hang, a traceback, a want of memory, a second line and a file left by a refusal are faults, whatever catches what they raise."""

import contextlib
import time

import pytest

from sim.errors import UsageError
from tests.cli import Result
from tests.hostile import many as runner

REFUSED = Result(2, "", "simctl: no\n")


def hangs(folder):
    with contextlib.suppress(Exception):  # as a reader of damaged files does
        time.sleep(5)
    return REFUSED


def hangs_where_no_exception_gets_out(folder):
    until = time.perf_counter() + 1.0
    while time.perf_counter() < until:
        with contextlib.suppress(BaseException):
            time.sleep(0.2)
    return REFUSED


def refuses_and_leaves_a_file(folder):
    (folder / "report.html").write_text("half")
    raise UsageError("no")


def answers_and_leaves_its_temporary_file(folder):
    (folder / ".run.nc.tmp").touch()


def says(code, stderr):
    return lambda folder: Result(code, "", stderr)


FAULTS = {
    "longer than": hangs,
    "longer than 0.1": hangs_where_no_exception_gets_out,
    "left ['report.html']": refuses_and_leaves_a_file,
    "left ['.run.nc.tmp']": answers_and_leaves_its_temporary_file,
    "ZeroDivisionError": lambda folder: 1 / 0,
    "not one line": says(2, "simctl: a\nb\n"),
    "not one line: ''": says(2, ""),
    "not one line: 'simctl: killed": says(130, "simctl: killed\n"),
    "wants more memory": says(1, "simctl: not enough memory\n"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault, monkeypatch):
    monkeypatch.setattr(runner, "LONGEST_S", 0.1)
    monkeypatch.setitem(runner.KINDS, "bad", lambda rng, folder: lambda: FAULTS[fault](folder))
    begun = time.perf_counter()
    found = runner.many("bad", 1, seed=0)
    assert fault in found["faults"][0]
    assert found["refused"] == found["answered"] == 0
    assert time.perf_counter() - begun < 4


@pytest.mark.parametrize(("ending", "counted"), [(None, "answered"), (REFUSED, "refused"), (Result(1, "No.\n", ""), "answered")])
def test_a_sound_ending_is_none(ending, counted, monkeypatch):
    monkeypatch.setitem(runner.KINDS, "good", lambda rng, folder: lambda: ending)
    found = runner.many("good", 1, seed=0)
    assert (found["faults"], found[counted]) == ([], 1)
