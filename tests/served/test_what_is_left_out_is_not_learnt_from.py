"""A served run predicted with its host, model, family or dtype left out is predicted from nothing that saw it."""

from pathlib import Path

import pytest

import scenarios
from calibrate.served.left_out import left_out, without_model
from calibrate.served.runs import read_served
from sim.specs.gpus import get_gpu
from simctl.validate_text import left_out_rows, left_out_table
from tests.cli import run

MEASURED = Path(scenarios.__file__).parent / "data" / "measured"


def test_rates_without_a_model_are_learnt_from_the_others():
    models = without_model(get_gpu("H200"), "qwen2.5-7b").source.models
    assert models
    assert not [name for name in models if name.lower().startswith("qwen2.5-7b")]


@pytest.mark.parametrize(("name", "part"), [("phi-4", "family"), ("qwen2.5-32b", "model"), ("llama3.1-8b_fp8", "dtype")])
def test_a_run_is_of_the_part_that_nobody_measured(name, part):
    found = list(left_out(read_served(MEASURED / "h200" / f"served_{name}.nc"), draws=2))
    assert {each.part for each in found} == {part}
    assert all(score.median_abs < 0.4 for each in found for score in each.scores)
    rows = left_out_rows(found)
    assert [row["metric"] for row in rows] == ["ttft_s", "tpot_s", "e2el_s"]
    assert all(row["left_out"] == part and row["loads"] == 2 for row in rows)
    assert len(left_out_table(found).splitlines()) == 4


def test_it_takes_all_packaged_runs_alone():
    done = run("validate", "--left-out", "--run", "h200/served_phi-4")
    assert done.code == 2
    assert "--left-out takes all packaged runs" in done.stderr
