"""A sweep's table ends with what differs on the same arrivals and, over request rates, with the knee; --plot draws it."""

import json
import math

import numpy as np
import pytest

from sim.results.paired import EACH, PAIRS, difference
from simctl.text.run_text import compared, knees
from tests.cli import run

RATES = [{"request-rate": rate} for rate in ("1", "2", "4", "8")]


def answers(values, width):
    return [
        {"p99_ttft_ms": value, "run_noise_90": {"p99_ttft_ms": [value * (1 - width), value * (1 + width)]}} for value in map(float, values)
    ]


def paired(repeats, draws=None, rates=1.0, metric="p99_ttft_ms"):
    """Rows of a cell each: its figure in each of 20 repeats, and at 20 draws of the rates where there are any."""
    none = [math.nan] * EACH
    return [
        {
            metric: row[0],
            "run_noise_90": {metric: [row[0], row[0]]},
            "pairs": {metric: [rates, *row, *(none if draws is None else draws)]},
        }
        for row in repeats
    ]


def test_cells_whose_paired_difference_covers_0_are_no_different():
    labels = [{"tp": "1"}, {"tp": "2"}, {"tp": "4"}]
    arrivals = np.linspace(80.0, 120.0, EACH)  # what the arrivals do to all cells alike
    wiggle = np.resize([1.5, -1.5], EACH)
    text = compared(labels, paired([arrivals, arrivals + 0.1 + wiggle, arrivals + 5 + wiggle]), ("p99_ttft_ms",))
    assert text.startswith("=> lowest p99_ttft_ms: tp 1; no difference from tp 2 (+0.1 [-0.")
    # 5 ms between cells that arrivals move by 40 together
    assert "apart from tp 4 (+5 [4.4-5.6])" in text
    assert compared(labels, [{"p99_ttft_ms": 1.0}] * 3, ("p99_ttft_ms",)) is None
    assert compared(labels[:1], paired([arrivals]), ("p99_ttft_ms",)) is None


def test_the_best_is_so_over_all_repeats_and_not_in_the_run_that_is_shown():
    steady, lucky_once = np.full(EACH, 100.0), np.full(EACH, 104.0)
    lucky_once[0] = 90.0
    text = compared([{"tp": "1"}, {"tp": "2"}], paired([steady, lucky_once]), ("p99_ttft_ms",))
    assert text.startswith("=> lowest p99_ttft_ms: tp 1; apart from tp 2 (+3.3 [")


def test_the_most_throughput_is_best():
    rows = paired([np.full(EACH, 7.0), np.full(EACH, 9.0)], metric="output_throughput")
    assert compared([{"tp": "1"}, {"tp": "2"}], rows, ("output_throughput",)) == (
        "=> highest output_throughput: tp 2; apart from tp 1 (-2 [-2--2])."
    )


def test_the_same_draws_of_the_rates_cancel_and_others_do_not():
    draws, same = np.linspace(50.0, 150.0, EACH), np.full(EACH, 100.0)
    one, other = (np.array(each["pairs"]["p99_ttft_ms"]) for each in paired([same, same + 5], draws))
    other[1 + EACH :] += 5.0
    assert difference(one, other) == pytest.approx((5.0, 5.0, 5.0))
    other[0] += 1  # of another GPU: both are uncertain by +-45
    middle, low, high = difference(one, other)
    assert (middle, high - middle) == pytest.approx((5.0, math.hypot(45.0, 45.0)))
    assert low == pytest.approx(middle - (high - middle))
    assert difference(np.full(PAIRS, np.nan), other) is None


def test_without_draws_cells_are_paired_by_their_repeats(tmp_path):
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "question: How fast?\ncommand: simulate\noptions: {gpu: H100, model: Llama-3.1-8B, num-prompts: 30, draws: 0, request-rate: 4}\n"
        "sweep: {max-num-seqs: [2, 64]}\nreport: [p99_ttft_ms]\n"
    )
    said = " ".join(run("run", str(scenario)).stdout.split())
    assert "=> lowest p99_ttft_ms: max-num-seqs 64; apart from max-num-seqs 2 (+" in said


def test_the_knee_is_where_the_first_latency_doubles():
    (line,) = knees(RATES, answers([50, 60, 90, 130], 0.0), ("p99_ttft_ms",))
    assert "knee between 4 and 8 requests/s" in line
    assert "doubles from its 50 at 1" in line
    (none,) = knees(RATES, answers([50, 60, 90, 99], 0.0), ("p99_ttft_ms",))
    assert "no knee up to 8 requests/s" in none
    assert knees([{"tp": "1"}, {"tp": "2"}], answers([1, 2], 0.0), ("p99_ttft_ms",)) == []
    two = [{"tp": tp, **rate} for tp in ("1", "2") for rate in RATES]
    assert [line.split(":")[0] for line in knees(two, answers([50, 60, 90, 130] * 2, 0.0), ("p99_ttft_ms",))] == ["=> tp 1", "=> tp 2"]


def test_one_command_draws_latency_over_rate_with_its_knee(tmp_path):
    plot = tmp_path / "curve.svg"
    few = ("--set", "num-prompts=60", "--set", "request-rate=4", "--plot", str(plot))
    assert run("run", "latency_against_rate", "--set", "num-prompts=60", "--dry-run").stdout.count("simctl simulate") == 8
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "question: How fast?\ncommand: simulate\noptions: {gpu: H100, model: Llama-3.1-8B, num-prompts: 60, draws: 0}\n"
        "sweep: {request-rate: [2, 60]}\nreport: [p99_ttft_ms, output_throughput]\n"
    )
    done = run("run", str(scenario), *few[4:])
    assert done.code == 0, done.stderr
    assert "=> knee between 2 and 60 requests/s" in done.stdout
    assert "p99_ttft_ms" in plot.read_text()
    refused = run("run", str(scenario), "--set", "request-rate=4", "--plot", str(plot))
    assert refused.code == 2
    assert "--plot: nothing that is swept" in refused.stderr


def test_a_sweeps_report_draws_what_the_scenario_reports(tmp_path):
    from simctl.report.of_sweep import part_of

    scenario, out = tmp_path / "s.yaml", tmp_path / "s.zarr"
    scenario.write_text(
        "question: How fast?\ncommand: simulate\noptions: {gpu: H100, model: Llama-3.1-8B, num-prompts: 30, draws: 4}\n"
        "sweep: {request-rate: [2, 2.3]}\nreport: [median_e2el_ms, gpu_hours]\n"
    )
    assert run("run", str(scenario), "-o", str(out)).code == 0
    pictures = part_of(out).pictures
    assert [each.name for each in pictures[:2]] == ["median_e2el_ms", "gpu_hours"]
    assert "The difference is" in pictures[0].reading  # of a few ms, where each is known within 20
    assert pictures[0].reading.endswith("on the same arrivals.")
    assert json.dumps(pictures[0].spec)
