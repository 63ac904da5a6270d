"""Beside a load the card's clock and power are read; a card that is told nothing of, or sits elsewhere, leaves no columns."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hw import machine
from hw.journal import Journal
from hw.serve.client import ServedRequest, Target
from hw.suites import served
from hw.suites.served_plan import PlannedLoad

FakeTool = Callable[[str], None]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTool:
    """Puts a program of this shell body on the path as the driver's tool."""

    def put(body: str) -> None:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    return put


def wait_for(readings: list[tuple[float, float]], count: int) -> None:
    deadline = time.monotonic() + 120
    while len(readings) < count and time.monotonic() < deadline:
        time.sleep(0.01)


def test_readings_are_those_of_the_block_and_the_tool_ends_with_it(tool: FakeTool, tmp_path: Path) -> None:
    tool(f"echo $$ > {tmp_path}/pid; while :; do echo '1620, 701.5'; sleep 0.02; done")
    with machine.clocks() as readings:
        wait_for(readings, 3)
    assert set(readings) == {(1620.0, 701.5)}
    assert len(readings) >= 3
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_lines_without_two_numbers_are_passed_over(tool: FakeTool) -> None:
    tool("echo 'No devices were found'; echo '1980, [N/A]'; echo '1980, 430'; exec sleep 30")
    with machine.clocks() as readings:
        wait_for(readings, 1)
    assert readings == [(1980.0, 430.0)]


def test_without_the_tool_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with machine.clocks() as readings:
        pass
    assert readings == []
    assert machine.summary(readings) == {}


def test_a_summary_has_middle_low_and_mean() -> None:
    readings = [(1980.0, 400.0)] * 6 + [(1600.0, 700.0)] * 4
    assert machine.summary(readings) == pytest.approx({"clock_sm_mhz_median": 1980.0, "clock_sm_mhz_p10": 1600.0, "power_w_mean": 520.0})


@pytest.mark.parametrize("local", [True, False])
def test_experiments_of_a_server_here_carry_them_and_of_one_elsewhere_do_not(tool: FakeTool, tmp_path: Path, local: bool) -> None:
    tool("while :; do echo '1500, 650'; sleep 0.02; done")

    async def send(target: Target) -> list[ServedRequest]:
        time.sleep(0.3)
        return [ServedRequest(8, 4, 0.0, token_s=[0.1, 0.2, 0.3, 0.4], finish_s=0.4)]

    async def nothing(*_: object, **__: object) -> list[ServedRequest]:
        return []

    journal = Journal(tmp_path / "j.jsonl", {"suite": "served"})
    experiment = PlannedLoad("open 1/s", "open", send, 1, 8, 4, 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served.load, "wave", nothing)
        patch.setattr(served, "memory_mib", lambda _: None)  # the tool above never ends
        served.measure([experiment], Target("http://127.0.0.1:9", "m"), 100, journal, served.Budget(None), "test", local=local)
    data = served.dataset(journal.records, {})
    assert ("clock_sm_mhz_median" in data) == local
    if local:
        assert float(data["clock_sm_mhz_median"][0]) == 1500.0
        assert float(data["power_w_mean"][0]) == 650.0
