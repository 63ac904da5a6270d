"""A validation shows what was measured beside what was predicted: medians in its table, whole distributions in its report."""

import json

import numpy as np
import pytest

from calibrate.served.scores import QUANTILES
from calibrate.served.validation import ValidationSettings, validate
from sim.units import format_seconds
from simctl.report.of_validation import part_of
from simctl.text.validate_text import as_dict, score_table
from tests.served.made_runs import IN_PROCESS, RUN, open_loop


@pytest.fixture(scope="module")
def report():
    from dataclasses import replace

    run = replace(RUN, experiments=(open_loop("open 2/s", 2.0, 60), open_loop("open 20/s", 20.0, 90, seed=1)))
    return validate(run, ValidationSettings(rates=IN_PROCESS, draws=8))


def test_the_table_has_both_medians(report):
    high = report.run.experiments[1]
    row = next(line for line in score_table(report.scores) if line.startswith("open 20/s") and "TTFT" in line and "p99" not in line)
    predicted = next(p for e, p in report.pairs if e is high)
    assert format_seconds(float(np.median(high.ttft_s))) in row
    assert format_seconds(float(np.median(predicted.ttft_s))) in row
    tail = next(s for s in report.scores if (s.experiment, s.metric) == ("open 20/s", "p99_ttft_s"))
    assert tail.measured_s == np.quantile(high.ttft_s, 0.99)
    assert tail.predicted_s / tail.measured_s - 1 == pytest.approx(tail.bias)


def test_the_report_draws_both_distributions(report):
    plain = json.loads(json.dumps(as_dict(report)))
    (found,) = [each for each in plain["distributions"] if each["experiment"] == "open 20/s"]
    high = report.run.experiments[1]
    assert found["ttft_s"]["measured"] == pytest.approx(np.quantile(high.ttft_s, QUANTILES))
    assert all(a <= b <= c for a, b, c in zip(*(found["ttft_s"][name] for name in ("low", "predicted", "high")), strict=True))
    pictures = {each.name: each for each in part_of([plain], "made").pictures}
    assert {"distribution_ttft", "distribution_tpot", "distribution_e2el"} <= set(pictures)
    drawn = pictures["distribution_ttft"].spec["data"]["values"]
    assert {row["series"] for row in drawn} == {"predicted", "measured"}
