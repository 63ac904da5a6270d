"""`python -m studies.predict_served` prints medians inside their own intervals, for the loads that the served suite sends."""

import csv
import io

from click.testing import CliRunner

from studies.predict_served import main


def test_one_row_per_load_and_metric_and_the_median_lies_in_its_interval():
    done = CliRunner().invoke(main, ["--gpu", "h200", "--model", "llama3.2-1b:fp8", "--rates", "0.5,2", "--draws", "8"])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO(done.output)))
    assert [(row["experiment"], row["metric"]) for row in rows] == [
        (load, metric) for load in ("open 0.5/s", "open 2/s") for metric in ("ttft", "tpot", "e2el")
    ]
    assert {row["weight_dtype"] for row in rows} == {"fp8"}
    for row in rows:
        assert 0 < float(row["median_low_ms"]) <= float(row["median_high_ms"])
    alone, busier = (float(row["mean_ms"]) for row in rows if row["metric"] == "tpot")
    assert busier >= 0.98 * alone


def tpot(*words: str) -> list[float]:
    done = CliRunner().invoke(main, ["--gpu", "h100", "--model", "llama3.1-8b", "--draws", "2", *words])
    assert done.exit_code == 0, done.output
    return [float(row["median_ms"]) for row in csv.DictReader(io.StringIO(done.output)) if row["metric"] == "tpot"]


def test_sessions_and_the_burst_have_a_prediction_and_little_cache_slows_the_burst():
    sessions, burst = tpot("--experiments", "sessions 8x4,burst")
    assert 0 < sessions < 2 * burst
