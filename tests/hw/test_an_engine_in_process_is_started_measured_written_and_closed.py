"""What suites that step an engine share: files of what was done however it ends, the engine closed, the journal gone once whole."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from hw import provenance
from hw.artifact import SCHEMA, load
from hw.jobs import Job
from hw.journal import Journal
from hw.suites import engine_grid_job, floor, in_process
from sim.errors import UsageError
from tests.hw.test_grid_runs_are_kept_resumed_and_marked import PretendEngine

JOB = Job("engine-grid", "cpu", "tiny-25m")


class Started(PretendEngine):
    load_s, closed = 1.0, False

    def describe(self) -> dict[str, Any]:
        return {"engine": "pretend", "max_model_len": 4096}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Started:
    made = Started()
    monkeypatch.setattr(in_process, "start", lambda job, folder: made)
    monkeypatch.setattr(floor, "measure", lambda device, quick: [])
    return made


def suite(journal: Journal, failure: BaseException | None = None, keys: tuple[str, ...] = ("a",)) -> in_process.Suite:
    def measure(engine: Any, wanted: Any, budget: Any, rng: Any) -> dict[str, Any]:
        for key in keys:
            journal.add(key, value=1.0)
        if failure is not None:
            raise failure
        return {"finished": 1}

    def dataset(attrs: Mapping[str, Any]) -> xr.Dataset | None:
        values = [record["value"] for record in journal.records]
        return xr.Dataset({"value": ("cell", values)}, attrs={"schema": SCHEMA, **attrs}) if values else None

    return in_process.Suite("cells", lambda engine, attrs: [attrs["max_model_len"]], measure, dataset, {"cell": ""})


def test_a_whole_run_says_what_it_ran_on_and_leaves_no_journal(engine: Started, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(tmp_path / "j", {})
    paths = in_process.run(JOB, tmp_path, journal, {"driver": "1"}, suite(journal))
    assert [path.name for path in paths] == [f"{JOB.stem}.nc", f"{JOB.stem}.csv"]
    attrs = load(paths[0]).attrs
    assert (attrs["driver"], attrs["engine"], attrs["finished"], attrs["model"]) == ("1", "pretend", 1, "tiny-25m")
    assert attrs["measuring_s"] >= 0
    assert (engine.closed, journal.path.exists()) == (True, False)
    assert capsys.readouterr().err == f"{JOB.stem}: engine up in 1 s, 1 cells\n"


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), RuntimeError("a bug")])
def test_a_run_that_ends_early_keeps_what_it_has(engine: Started, tmp_path: Path, failure: BaseException) -> None:
    journal = Journal(tmp_path / "j", {})
    with pytest.raises(type(failure)):
        in_process.run(JOB, tmp_path, journal, {}, suite(journal, failure))
    assert load(tmp_path / f"{JOB.stem}.nc").attrs["finished"] == 0
    assert (engine.closed, journal.path.exists()) == (True, True)


def test_a_run_that_measured_nothing_writes_nothing(engine: Started, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {})
    with pytest.raises(KeyboardInterrupt):
        in_process.run(JOB, tmp_path, journal, {}, suite(journal, KeyboardInterrupt(), keys=()))
    assert engine.closed
    assert not list(tmp_path.glob("*.nc"))


def test_a_grid_that_was_killed_is_written_from_its_journal_as_it_would_have_been(engine: Started, tmp_path: Path) -> None:
    cells = tmp_path / "two.cells.json"
    asked = [{"kind": "prefill", "contexts": [], "chunks": [[0, 64]]}, {"kind": "decode", "contexts": [100, 100], "chunks": []}]
    cells.write_text(json.dumps({"schema": "simctl-cells/1", "cells": asked}))
    job = Job("engine-grid", "cpu", "tiny-25m", cells=str(cells), max_num_batched_tokens=512)
    journal = Journal(tmp_path / f"{job.stem}.journal.jsonl", {"suite": job.suite})
    engine.fails = {2: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        engine_grid_job.run(job, tmp_path, journal, {"driver": "1"})
    written = load(tmp_path / f"{job.stem}.nc", "engine-grid")
    recovered = [load(path, "engine-grid") for path in engine_grid_job.recover(journal.path) if path.suffix == ".nc"]
    xr.testing.assert_identical(recovered[0], written)
    assert written.label.values.tolist() == ["prefill:0+1x64@0"]
    assert recovered[0].finished == 0
    engine.fails = {}
    engine_grid_job.run(job, tmp_path, journal, {"driver": "1"})
    whole = load(tmp_path / f"{job.stem}.nc", "engine-grid")
    assert whole.finished == 1
    assert {"decode:2x100", "prefill:0+1x64@0"} <= set(whole.label.values.tolist())
    empty = Journal(tmp_path / "empty.journal.jsonl", {"suite": job.suite})
    empty.add("attrs", attrs={})
    with pytest.raises(UsageError, match="no finished cell"):
        engine_grid_job.recover(empty.path)


def test_what_the_card_says_afterwards_is_of_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    card = {"clock_sm_mhz": "1500", "clock_mem_mhz": "2", "power_w": "600", "power_limit_w": "700", "temperature_c": "50"}
    monkeypatch.setattr(provenance, "query_gpus", lambda: [card, card | {"clock_sm_mhz": "1"}])
    assert provenance.after("cuda") == {"after_clock_sm_mhz": "1500", "after_power_w": "600", "after_temperature_c": "50"}
    assert provenance.after("cpu") == {}
