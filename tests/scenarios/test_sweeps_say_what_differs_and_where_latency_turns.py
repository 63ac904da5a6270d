"""A sweep's table ends with what differs beyond its intervals and, over request rates, with the knee; --plot draws it."""

import json

from simctl.text.run_text import compared, knees
from tests.cli import run

RATES = [{"request-rate": rate} for rate in ("1", "2", "4", "8")]


def answers(values, width):
    return [
        {"p99_ttft_ms": value, "run_noise_90": {"p99_ttft_ms": [value * (1 - width), value * (1 + width)]}} for value in map(float, values)
    ]


def test_cells_whose_intervals_overlap_are_no_different():
    labels = [{"tp": "1"}, {"tp": "2"}, {"tp": "4"}]
    near = compared(labels, answers([100, 104, 300], 0.05), ("p99_ttft_ms",))
    assert near == "=> lowest p99_ttft_ms: tp 1; no difference from tp 2: intervals overlap."
    assert compared(labels, answers([100, 104, 300], 0.01), ("p99_ttft_ms",)) == "=> lowest p99_ttft_ms: tp 1; apart from all others."
    assert compared(labels, [{"p99_ttft_ms": 1.0}] * 3, ("p99_ttft_ms",)) is None
    assert compared(labels[:1], answers([1], 0.1), ("p99_ttft_ms",)) is None


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
        "sweep: {request-rate: [2, 2.1]}\nreport: [median_e2el_ms, gpu_hours]\n"
    )
    assert run("run", str(scenario), "-o", str(out)).code == 0
    pictures = part_of(out).pictures
    assert [each.name for each in pictures[:2]] == ["median_e2el_ms", "gpu_hours"]
    assert "no difference" in pictures[0].reading
    assert json.dumps(pictures[0].spec)
