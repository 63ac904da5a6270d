"""A sweep of questions made by a function: a dataset by axis, resumed without answering again."""

import pytest

from sim import Deployment, UsageError, WhatIf, sweep
from sim.sweeps.sweep_question import digest

AXES = {"gpu": ["A10", "H100"], "tp": [1, 2]}


def knee(gpu, tp):
    return WhatIf(Deployment.of("Qwen2.5-7B-1M", gpu, tp=tp), 8192, draws=20)


def test_cells_lie_along_their_axes(tmp_path):
    cells = sweep(knee, AXES, tmp_path / "knees.zarr", figures=["knee.batch"])
    assert cells["knee.batch"].dims == ("gpu", "tp")
    assert float(cells["knee.batch"].sel(gpu="H100", tp=2)) == knee("H100", 2).answer().knee.batch


def test_a_second_time_nothing_is_answered_again(tmp_path, monkeypatch):
    first = sweep(knee, AXES, tmp_path / "knees.zarr", figures=["knee.batch"])
    monkeypatch.setattr("sim.sweeps.sweep_question._answered", None)
    assert sweep(knee, AXES, tmp_path / "knees.zarr", figures=["knee.batch"]).equals(first)


def test_another_question_is_another_cell():
    assert digest(knee("A10", 1)) == digest(knee("A10", 1))
    assert digest(knee("A10", 1)) != digest(knee("A10", 2))


def test_a_sweep_of_nothing_is_refused(tmp_path):
    with pytest.raises(UsageError, match="name figures"):
        sweep(knee, AXES, tmp_path / "knees.zarr")
