"""Ctrl-C keeps every cell that was answered, says how to go on, and exits as shells have it; a dry run leaves nothing."""

import re

import xarray as xr

import simctl.scenario_files.sweeping as work
from tests.cli import run
from tests.sweeps.made_sweeps import scenario


def test_the_answer_is_partial_and_the_same_command_goes_on(tmp_path, monkeypatch):
    out, whole = tmp_path / "a.zarr", work.outcomes
    go = ("sweep", scenario(tmp_path), "-o", str(out), "--workers", "1", "--progress")

    def interrupted(cells, answer, opened):
        yield from whole(dict(list(cells.items())[:3]), answer, opened)
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "outcomes", interrupted)
    result = run(*go)
    assert (result.code, result.stdout) == (130, "")
    assert "3 of 4 cells, 1 left" in result.stderr
    assert "best so far: knee.batch" in result.stderr
    assert f"interrupted: 3 of 4 cells are in {out}, and the same command goes on from there" in result.stderr
    assert int(xr.open_zarr(out).done.sum()) == 3
    monkeypatch.setattr(work, "outcomes", whole)
    again = run(*go)
    assert again.code == 0
    assert "3 of 4 cells are done; going on" in again.stderr


def test_a_dry_run_counts_and_times_and_writes_nothing(tmp_path):
    shown = run("sweep", scenario(tmp_path), "--dry-run", "--vary", "ctx=1000:9000", "--samples", "7").stdout
    assert "7 cells: sample 7; 1 figures each" in shown
    assert "ctx: 1000:9000" in shown
    assert re.search(r"about \d+ s on \d+ processes: the median cell took [\d.]+ s", shown)
    assert [each.name for each in tmp_path.iterdir()] == ["study.yaml"]
