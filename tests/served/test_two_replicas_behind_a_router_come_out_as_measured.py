"""Two servers on two H200s behind vllm-router, and a 70B over both: replayed as fleets, by rates learnt without them."""

from importlib.resources import files
from pathlib import Path

import pytest

from calibrate.served.runs import read_served
from calibrate.served.validation import ValidationSettings, validate

VALIDATION = Path(str(files("scenarios") / "data" / "measured" / "validation"))
pytestmark = pytest.mark.skipif(not VALIDATION.is_dir(), reason="raw runs come with the source tree")


def scores(name, draws=20, **asked):
    report = validate(read_served(VALIDATION / f"h200_served_{name}.nc"), ValidationSettings(draws=draws, **asked))
    return {(s.experiment, s.metric): s for s in report.scores}


def test_replicas_known_from_a_low_load_answer_a_high_one_within_two_per_cent():
    found = scores("qwen3-14b_x2")
    for load in ("open 10/s", "open 30/s", "open 30/s again"):
        for metric in ("tpot_s", "e2el_s"):
            assert found[load, metric].median_abs <= 0.02
            assert found[load, metric].coverage >= 0.85


def test_replicas_never_seen_answer_within_six_per_cent():
    found = scores("qwen3-14b_x2", transferred=True)
    for load in ("open 2/s", "open 10/s", "open 30/s"):
        assert found[load, "e2el_s"].median_abs <= 0.06


def test_a_70b_below_saturation_answers_within_two_per_cent():
    found = scores("llama3.1-70b_tp2", transferred=True)
    for load in ("open 2/s", "closed 16x4"):
        for metric in ("tpot_s", "e2el_s"):
            assert found[load, metric].median_abs <= 0.02
            assert found[load, metric].coverage >= 0.85


@pytest.mark.xfail(strict=True, reason="near saturation a small error of an iteration grows: 6 % too fast")
def test_a_70b_near_saturation_answers_within_five_per_cent():
    assert scores("llama3.1-70b_tp2", transferred=True)["open 10/s", "e2el_s"].median_abs <= 0.05


def test_a_70b_in_fp8_answers_within_six_per_cent():
    found = scores("llama3.1-70b_fp8_tp2", draws=40, transferred=True)  # near saturation the median of eight draws is off by 3 %
    for load in ("open 2/s", "open 10/s", "closed 16x4"):
        for metric in ("tpot_s", "e2el_s"):
            assert found[load, metric].median_abs <= 0.06
            assert found[load, metric].coverage >= 0.85


def test_a_70b_in_fp8_below_saturation_answers_within_two_per_cent():
    assert scores("llama3.1-70b_fp8_tp2", transferred=True)["open 2/s", "tpot_s"].median_abs <= 0.02


def test_a_run_of_replicas_is_read_as_such():
    run = read_served(VALIDATION / "h200_served_qwen3-14b_x2.nc")
    assert (run.replicas, run.prefill, run.deployment.replicas, run.fleet) == (2, 0, 2, None)
