"""Learn, Validate and Report are questions: what the commands answer, from Python."""

import json

import pytest

from calibrate.log_questions import Learn, Validate
from calibrate.served.validation import ValidationSettings
from sim import Deployment, Plan, UsageError, Workload
from sim.files import package_path
from simctl.report.report_question import Report
from tests.cli import run

SERVED = package_path("scenarios", "data", "measured", "validation", "h200_served_llama3.1-8b_v0.26.nc")
CHAT = Deployment.of("Llama-3.1-8B", "H100")


def test_a_validation_scores_as_the_command_does():
    found = Validate(SERVED, settings=ValidationSettings(draws=20)).answer()
    said = json.loads(run("validate", "--run", str(SERVED), "--draws", "20", "--json").stdout)
    assert [score.median_abs for score in found.scores] == pytest.approx([each["median_abs"] for each in said[0]["scores"]])
    assert repr(found).startswith("<ValidationReport h200_served_llama3.1-8b_v0.26")
    assert len(repr(found)) <= 200


def test_a_log_needs_what_served_it(tmp_path):
    (tmp_path / "log.csv").write_text("arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s\n0,10,5,0.1,0.2\n")
    for question in (Learn(tmp_path / "log.csv"), Validate(tmp_path / "log.csv")):
        with pytest.raises(UsageError, match="a log needs --model and --gpu"):
            question.answer()
    assert repr(Learn(tmp_path / "log.csv", CHAT)) == "<Learn log.csv, Llama-3.1-8B on 1 x H100, draws 600, chains 4>"


def test_a_report_is_the_page_that_the_command_writes(tmp_path):
    load = Workload.drawn(30, request_rate=2.0, output_len=20)
    plan = Plan([CHAT], load, ("ttft:p99<2s",), quick=True, workers=1).answer()
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_dict()))
    assert run("report", str(tmp_path / "plan.json"), "-o", str(tmp_path / "page.html")).code == 0
    assert Report([tmp_path / "plan.json"]).answer() == (tmp_path / "page.html").read_text()
    with pytest.raises(UsageError, match="1 to 20 results"):
        Report([])
