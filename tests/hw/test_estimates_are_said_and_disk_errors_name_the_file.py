"""What a job says before, during and at a bad end: how long it takes, how much is left, which file the disk had no room for."""

import io
from pathlib import Path
from typing import Any

import pytest

from hw.artifact import write
from hw.estimate import SEEN_S, expected
from hw.jobs import NEEDS_CUDA, SUITES
from hw.journal import Journal
from hw.pace import Budget, paced


def test_every_suite_has_an_estimate_on_every_device_it_runs_on() -> None:
    assert set(SEEN_S) == {(s, d) for s in SUITES for d in ("cuda", "cpu") if d == "cuda" or s not in NEEDS_CUDA}


def test_a_budget_bounds_the_estimate_and_a_running_server_needs_no_start() -> None:
    assert expected("engine-grid", "cuda", 20.0) == "about 110 s: 90 to start, 20 measuring"
    assert expected("engine-grid", "cuda", None) == "about 150 s: 90 to start, 60 measuring"
    assert expected("served", "cuda", 1000.0, starts=False) == "about 120 s"


def test_progress_says_what_is_left_within_the_budget() -> None:
    now, said = [0.0], io.StringIO()
    for budget in (None, 35.0):
        now[0] = 0.0
        for _ in paced(range(10), Budget(budget, clock=lambda: now[0]), "x", stream=said):
            now[0] += 5.0
    lines = said.getvalue().splitlines()
    assert lines[0] == "x: 1/10 cells, 5 s, about 45 s left"
    assert lines[9] == "x: 10/10 cells, 50 s, about 0 s left"
    assert lines[10] == "x: 1/10 cells, 5 s, about 30 s left"
    assert lines[-1] == "x: budget spent after 7 of 10 cells"


def test_a_full_disk_is_named_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import xarray as xr

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "Unable to synchronously create file (file write failed: errno = 28, buf = 0x55)")

    monkeypatch.setattr(xr.Dataset, "to_netcdf", full)
    with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device: '.*x\.nc'$"):
        write(xr.Dataset({"a": ("cell", [1.0])}), tmp_path / "x.nc", {})
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"j\.jsonl'$"):
        Journal(tmp_path / "j.jsonl", {}).add("a", value=1)
