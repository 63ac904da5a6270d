"""`simctl calibrate --collect` measures in a process of its own, learns from what that wrote, and passes on why it could not."""

from pathlib import Path

import numpy as np
import pytest

from calibrate.steps import calibrate_question
from hw import jobs
from hw.jobs import Job
from sim.errors import SimctlError
from tests.calibrate.grids import write_grid
from tests.cli import run

FLOORS = {"floor_copy_bytes_per_s": 2e12, "floor_read_bytes_per_s": 2.5e12, "floor_matmul_fp32_flop_per_s": 4e14}


@pytest.fixture
def measured(monkeypatch):
    """Jobs measured, and where to; instead of measuring, a synthetic grid is written."""
    seen = []

    def pretend(job, out):
        seen.append(job)
        out.mkdir(parents=True, exist_ok=True)
        return [write_grid(out / "engine-grid_x.nc", np.random.default_rng(0), **FLOORS)]

    monkeypatch.setattr(jobs, "run_apart", pretend)
    return seen


class Fitted:
    def __init__(self, cells, priors, settings):
        self.cells = cells
        raise Stop(len(cells))


class Stop(Exception):
    pass


@pytest.mark.parametrize(
    ("hw", "extra", "wants"),
    [
        ("h100", ["--model", "qwen2.5-7b", "--budget", "30s"], Job("engine-grid", "cuda", "qwen2.5-7b", None, 30.0, expect_gpu="H100")),
        ("cpu", [], Job("engine-grid", "cpu", "tiny-25m", max_num_seqs=16, max_num_batched_tokens=512)),
    ],
)
def test_it_measures_what_was_asked_and_learns_from_that_file(tmp_path, monkeypatch, measured, hw, extra, wants):
    # the fit itself is another test's: here it must be handed the 24 good cells of the collected file
    monkeypatch.setattr(calibrate_question, "StepFit", Fitted)
    with pytest.raises(Stop, match="24"):
        run("calibrate", "--hw", hw, "--collect", str(tmp_path / "c"), *extra)
    assert measured == [wants]
    assert (tmp_path / "c" / "this-machine.yaml").exists() == (hw == "cpu")


def test_a_cells_file_is_passed_on(tmp_path, monkeypatch, measured):
    monkeypatch.setattr(calibrate_question, "StepFit", Fitted)
    with pytest.raises(Stop):
        run("calibrate", "--hw", "cpu", "--collect", str(tmp_path), "--cells", "cells.json")
    assert Path(measured[0].cells).name == "cells.json"


def test_a_measurement_that_fails_is_one_line_and_exit_1(tmp_path, monkeypatch):
    def busy(job, out):
        raise SimctlError("the device is busy")

    monkeypatch.setattr(jobs, "run_apart", busy)
    code, out, err = run("calibrate", "--hw", "cpu", "--collect", str(tmp_path))
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == "simctl: the device is busy"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--hw", "h100", "--collect", "d"], "needs --model"),
        (["--hw", "h1oo", "--collect", "d"], "unknown GPU"),
        (["--hw", "cpu", "--collect", "d", "--from", "x.nc"], "takes no --from"),
        (["--hw", "h100", "--cells", "c.json"], "needs --collect"),
    ],
)
def test_requests_that_make_no_sense_measure_nothing(tmp_path, monkeypatch, measured, argv, says):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("calibrate", *argv)
    assert code == 2
    assert says in err
    assert measured == []
