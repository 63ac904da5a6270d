"""A served run predicted with its host, model, family, dtype, engine version or GPU left out is predicted from nothing that saw it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import scenarios
from calibrate.served.left_out import _without_gpu, kind_of_run, left_out, without_model, without_tp
from calibrate.served.runs import read_served
from calibrate.steps.iterations import concatenate
from sim.rates.load import load_rates
from sim.specs.gpus import get_gpu
from simctl.text.validate_text import left_out_rows, left_out_table
from tests.cli import run

OF_GPUS = {"sibling", "kernels", "datasheet"}
OF_MODELS = {"model", "family"}  # a model with grids is left out, too
MEASURED = Path(scenarios.__file__).parent / "data" / "measured"


def test_rates_without_a_model_are_learnt_from_the_others(monkeypatch):
    found, learnt_from = without_model(get_gpu("H200"), "Qwen2.5-7B"), []
    assert found.source.models
    assert "Qwen2.5-7B" not in found.source.models
    monkeypatch.setattr("calibrate.served.left_out.concatenate", lambda cells: learnt_from.extend(cells) or concatenate(cells))
    without_model.__wrapped__(get_gpu("H200"), "Qwen2.5-7B")
    labels = {str(label) for cells in learnt_from for label in cells.model}
    assert "llama3.1-8b bf16" in labels
    assert not [label for label in labels if label.startswith("qwen2.5-7b")]


def test_rates_without_several_gpus_are_learnt_from_one():
    found = without_tp(get_gpu("H200"))
    assert found.source.tps == (1,)
    assert 2 in load_rates(replace(read_served(MEASURED / "h200" / "served_phi-4.nc").deployment, tp=2)).source.tps


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("phi-4", "family"),
        ("qwen2.5-32b", "model"),
        ("llama3.1-8b_fp8", "dtype"),
        ("qwen2.5-7b_v0.24", "version"),
        ("llama3.1-8b_sync", "scheduling"),
    ],
)
def test_a_run_is_of_the_part_that_nobody_measured(name, part):
    everything = list(left_out(read_served(MEASURED / "h200" / f"served_{name}.nc"), draws=10))
    assert all(score.median_abs < 0.4 for each in everything for score in each.scores)
    assert {each.part for each in everything} - OF_GPUS <= {part, *OF_MODELS}
    found = [each for each in everything if each.part == part]
    rows = left_out_rows(found)
    assert [row["metric"] for row in rows] == ["ttft_s", "tpot_s", "e2el_s"]
    assert all(row["left_out"] == part and row["loads"] == 2 for row in rows)
    assert len(left_out_table(found).splitlines()) == 4


@pytest.mark.parametrize(("gpu", "other"), [("h100", "H200"), ("h200", "H100")])
def test_a_gpu_left_out_is_known_by_its_kin_its_kernels_or_its_datasheet(gpu, other):
    name = "served_qwen3-14b" if gpu == "h100" else "served_phi-4"
    run_of = read_served(MEASURED / gpu / f"{name}.nc")
    found = {part: rates for part, _, rates in _without_gpu(run_of)}
    assert set(found) == OF_GPUS
    assert f"scaled from {other}" in found["sibling"].source.text()
    for known in ("kernels", "datasheet"):
        assert found[known].source.evidence.endswith(f"engine grids of {other}")
    assert ("kernel latencies" in found["kernels"].source.evidence) > ("kernel latencies" in found["datasheet"].source.evidence)
    width = {of: np.std(np.log(rates.draws.beta)) for of, rates in (found | {"measured": load_rates(run_of.deployment)}).items()}
    assert width["measured"] < width["kernels"] < width["datasheet"]
    assert width["measured"] < width["sibling"]


def test_it_takes_all_packaged_runs_alone():
    done = run("validate", "--left-out", "--run", "h200/served_phi-4")
    assert done.code == 2
    assert "--left-out takes all packaged runs" in done.stderr


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("deepseek-v2-lite", "architecture"),
        ("llama3.1-8b_gptq", "precision"),
        ("qwen3-coder-20-layers_dp2", "parallel"),
        ("llama3.1-8b_eager", "eager"),
        ("llama3.1-8b_lora", "adapters"),
        ("llama3.1-8b_eagle3-k2", "drafts"),
        ("qwen2.5-7b_sglang", "engine"),
        ("llama3.1-8b_plain", ""),
    ],
)
def test_a_run_nothing_was_learnt_from_is_of_the_kind_that_was_never_served(name, kind):
    assert kind_of_run(read_served(MEASURED / "validation" / f"h100_served_{name}.nc")) == kind
