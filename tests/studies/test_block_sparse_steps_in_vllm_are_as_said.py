"""Decode steps of vLLM with block-sparse attention, measured on an H100 and an H200 on 2026-11-28 and predicted first."""

import numpy as np
import pytest

from studies import score_sparse_served as study
from studies.predict_sparse_served import steps_s


@pytest.mark.parametrize(("gpu", "model"), [("H100", "qwen2.5-7b-14-layers"), ("H200", "qwen2.5-7b")])
def test_eight_times_256k_is_at_least_three_and_a_half_times_dense(gpu: str, model: str) -> None:
    steps = study.steps_ms(gpu, model)
    assert steps[8, 262144, 0] / steps[8, 262144, 32] >= 3.5


def test_on_the_h100_six_of_seven_steps_lie_in_the_interval_said_before() -> None:
    found = [row for model in study.CELLS for row in study.lines("H100", model) if row[3]]
    assert len(found) == 52
    assert np.mean([inside for _, _, inside, _ in found]) >= 0.85
    assert np.median([abs(error) for _, error, _, _ in found]) <= 0.1


def test_with_selection_alone_all_steps_of_an_h200_lie_in_the_interval_said_before() -> None:
    found = list(study.lines("H200", "qwen2.5-7b", "in-process-0"))
    assert len(found) == 40
    assert all(inside for _, _, inside, _ in found)
    assert np.median([abs(error) for _, error, _, _ in found]) <= 0.03


def test_ten_minutes_of_load_leave_no_block_and_no_memory_behind() -> None:
    first, second = study.lasted("H200")
    assert first.startswith("614 s of load: 1800 of 1800 requests complete, 20 preemptions")
    assert "then 0 % of blocks held, +4 MiB" in second


@pytest.mark.parametrize("key", [(1, 8192, 32), (8, 262144, 32), (8, 262144, 0)])
def test_what_was_said_before_is_what_the_stack_says_today(key: study.Key) -> None:
    batch, context, k = key
    said = study.predicted_ms("H200", "qwen2.5-7b", "in-process-0")[key]
    steps = 1e3 * steps_s(study.deployment("H200", "qwen2.5-7b"), batch, context, k, served=False)
    assert np.quantile(steps, [0.5, 0.05, 0.95]) == pytest.approx(said, rel=1e-3)
