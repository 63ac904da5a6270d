"""`simctl calibrate --collect` measures in a process of its own, learns from what that wrote, and passes on why it could not."""

from pathlib import Path

import numpy as np
import pytest

from calibrate.steps import fit
from simctl import collect
from tests.calibrate.grids import write_grid
from tests.cli import run

FLOORS = {"floor_copy_bytes_per_s": 2e12, "floor_read_bytes_per_s": 2.5e12, "floor_matmul_fp32_flop_per_s": 4e14}


@pytest.fixture
def calls(monkeypatch):
    """Calls of the measuring command; instead of measuring, it writes a synthetic grid."""
    seen = []

    def pretend(call):
        seen.append(call)
        out = Path(call[call.index("-o") + 1])
        out.mkdir(parents=True, exist_ok=True)
        write_grid(out / "engine-grid_x.nc", np.random.default_rng(0), **FLOORS)
        return 0, ""

    monkeypatch.setattr(collect, "measure", pretend)
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
        ("h100", ["--model", "qwen2.5-7b", "--budget", "30s"], ["--hw", "cuda", "--expect-gpu", "H100", "--budget", "30"]),
        ("cpu", [], ["--hw", "cpu", "--model", "tiny-25m", "--max-num-seqs", "16"]),
    ],
)
def test_it_measures_what_was_asked_and_learns_from_that_file(tmp_path, monkeypatch, calls, hw, extra, wants):
    # the fit itself is another test's: here it must be handed the 24 good cells of the collected file
    monkeypatch.setattr(fit, "StepFit", Fitted)
    with pytest.raises(Stop, match="24"):
        run("calibrate", "--hw", hw, "--collect", str(tmp_path / "c"), *extra)
    (call,) = calls
    text = " ".join(call)
    for option, value in zip(wants[::2], wants[1::2], strict=True):
        assert f"{option} {value}" in text
    assert (tmp_path / "c" / "this-machine.yaml").exists() == (hw == "cpu")


def test_a_cells_file_is_passed_on(tmp_path, monkeypatch, calls):
    monkeypatch.setattr(fit, "StepFit", Fitted)
    with pytest.raises(Stop):
        run("calibrate", "--hw", "cpu", "--collect", str(tmp_path), "--cells", "cells.json")
    assert "cells.json" in calls[0][calls[0].index("--cells") + 1]


def test_a_measurement_that_fails_is_one_line_and_exit_1(tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "measure", lambda call: (1, "hw: the device is busy"))
    code, out, err = run("calibrate", "--hw", "cpu", "--collect", str(tmp_path))
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == "simctl: measuring failed: hw: the device is busy"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--hw", "h100", "--collect", "d"], "needs --model"),
        (["--hw", "h1oo", "--collect", "d"], "unknown GPU"),
        (["--hw", "cpu", "--collect", "d", "--from", "x.nc"], "neither --from nor --for"),
        (["--hw", "h100", "--cells", "c.json"], "needs --collect"),
    ],
)
def test_requests_that_make_no_sense_measure_nothing(tmp_path, monkeypatch, calls, argv, says):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("calibrate", *argv)
    assert code == 2
    assert says in err
    assert calls == []


def test_the_real_measuring_command_says_why_it_cannot(tmp_path):
    code, said = collect.measure(["--hw", "cpu", "--suite", "engine-grid", "--model", "no-such-shape", "-o", str(tmp_path)])
    assert code == 2
    assert "unknown model shape" in said
