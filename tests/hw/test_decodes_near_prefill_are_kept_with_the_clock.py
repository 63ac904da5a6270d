"""The suite duty keeps every iteration of a row or a duty with its place in it, and the card's readings beside; a run cut short goes on."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hw.artifact import load, write
from hw.journal import Journal
from hw.pace import Budget
from hw.suites import duty
from hw.suites.duty import Duty
from tests.hw.test_grid_runs_are_kept_resumed_and_marked import PretendEngine

WANTED = [Duty(512, 0.0), Duty(256, 0.0, decodes=4, context=100, every=3), Duty(256, 0.0, decodes=8, context=50, every=2)]


class SlowEngine(PretendEngine):
    """As slow as a step is to a program that reads a clock."""

    def step(self) -> Any:
        time.sleep(2e-3)
        return super().step()


def run(engine: PretendEngine, journal: Journal, budget: Budget, seconds: float = 0.02) -> dict[str, Any]:
    return duty.measure(engine, WANTED, journal, budget, np.random.default_rng(0), "test", seconds=seconds)


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that says 1,500 MHz at 650 W all the time."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nwhile :; do echo '1500, 650'; sleep 0.002; done\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("card")
def test_parts_follow_one_another_and_chunks_come_as_often_as_asked(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {})
    assert run(SlowEngine(), journal, Budget(None), seconds=0.1) == {"finished": 1}
    dims = {"sequence": "", "iteration": ".iterations", "reading": ".readings"}
    paths = write(duty.dataset(journal.records, {"model": "m", "gpu_name": "g"}), tmp_path / "d.nc", dims)
    assert [path.name for path in paths] == ["d.nc", "d.csv", "d.iterations.csv", "d.readings.csv"]
    data = load(paths[0], "duty")
    assert data.label.values.tolist() == ["row 512 after 0 s", "duty 4x100+256 every 3", "duty 8x50+256 every 2"]
    assert data.kind.values.tolist() == ["row", "duty", "duty"]
    parts = data.part.values
    for index, every in ((1, 3), (2, 2)):
        own = data.sequence_index.values == index
        assert sorted(set(parts[own]), key=parts[own].tolist().index) == ["before", "during", "after"]
        assert (np.diff(data.at_s.values[own]) > 0).all()
        prefill = data.prefill_tokens.values
        assert not prefill[own & (parts != "during")].any()
        during = prefill[own & (parts == "during")]
        assert during[::every].tolist() == [256] * len(during[::every])
        assert during.sum() == 256 * len(during[::every])
        assert set(data.decode_seqs.values[own]) == {int(data.decodes.values[index])}
    row = data.sequence_index.values == 0
    assert set(parts[row]) == {"during"}
    assert set(data.prefill_tokens.values[row]) == {512}
    assert set(data.sm_mhz.values) == {1500.0}
    assert set(data.power_w.values) == {650.0}
    assert (np.diff(data.reading_sequence_index.values) >= 0).all()


def test_without_a_card_that_tells_there_are_no_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    journal = Journal(tmp_path / "j", {})
    run(PretendEngine(), journal, Budget(None))
    data = duty.dataset(journal.records, {})
    assert "reading" not in data.sizes
    assert data.attrs["sequences_ok"] == 3


def test_a_sequence_that_fails_is_marked_and_the_next_one_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {})
    assert run(PretendEngine(fails={4: RuntimeError("CUDA out of memory")}), journal, Budget(None)) == {"finished": 1}
    data = duty.dataset(journal.records, {})
    assert data.status.values.tolist() == ["ok", "oom", "ok"]
    assert set(data.sequence_index.values) == {0, 2}


def test_a_run_cut_short_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "j"
    first = Journal(path, {"suite": "duty"})
    assert run(PretendEngine(), first, Budget(duty.RESERVE_S, clock=iter([0.0, -1.0, -1.0, -1.0, 10.0, *[20.0] * 9]).__next__)) == {
        "finished": 0
    }
    assert 0 < len(first.records) < len(WANTED)
    again = Journal(path, {"suite": "duty"}, resume=True)
    assert run(PretendEngine(), again, Budget(None)) == {"finished": 1}
    assert [record["key"] for record in again.records] == [one.label for one in WANTED]


def test_every_sequence_fits_the_steps_and_the_engine_of_the_grids() -> None:
    for one in duty.sequences():
        assert one.context * one.decodes < 200_000
        assert one.chunk + one.decodes <= 8192 + 256
    labels = [one.label for one in duty.sequences()]
    assert len(set(labels)) == len(labels)
    assert {one.chunk for one in duty.sequences(16)} == {32, 64, 128, 512}
