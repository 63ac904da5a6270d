"""The same requests, deployment and host never seen: `validate` and `simulate` print the same intervals, to the digit."""

import csv
import json

import pytest

from calibrate.served.load_figures import FIGURES
from tests.cli import run
from tests.served.made_runs import open_loop

WHERE = ("--model", "Qwen2.5-7B", "--gpu", "H100", "--max-num-seqs", "256", "--max-num-batched-tokens", "8192")


@pytest.fixture(scope="module", params=[(), ("--engine-version", "0.11")], ids=["ahead", "synchronous"])
def both(tmp_path_factory, request):
    made, path = open_loop("log", 6.0, 120), tmp_path_factory.mktemp("log") / "log.csv"
    with path.open("w", newline="") as handle:
        rows = csv.writer(handle)
        rows.writerow(["arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "finish_s"])
        for sent, prompt, output, first, last in zip(
            made.arrival_s, made.prompt_tokens, made.output_tokens, made.ttft_s, made.e2el_s, strict=True
        ):
            rows.writerow([sent, prompt, output, sent + first, sent + last])
    (report,) = json.loads(run("validate", "--run", str(path), *WHERE, *request.param, "--transferred", "--json").stdout)
    trace = ("--trace", str(path), "--workload-option", "trace-format=log", "--no-iterations", "--json")
    return report, json.loads(run("simulate", *WHERE, *request.param, *trace).stdout)


def test_every_figure_has_the_same_value_and_intervals(both):
    report, answer = both
    assert {each["figure"] for each in report["figures"]} == set(FIGURES)
    for each in report["figures"]:
        name = each["figure"]
        assert each["predicted"] == pytest.approx(answer[name], rel=1e-9), name
        for kind in ("rates_90", "run_noise_90"):
            assert each[kind] == pytest.approx(answer[kind][name], rel=1e-6), (kind, name)


def test_a_figure_is_inside_where_both_together_reach(both):
    for each in both[0]["figures"]:
        low, high = each["both_90"]
        assert each["inside"] == (low <= each["measured"] <= high)
        assert low <= min(each["rates_90"][0], each["run_noise_90"][0])
        assert high >= max(each["rates_90"][1], each["run_noise_90"][1])


def test_of_a_summary_the_figures_that_it_states_are_judged_alone(tmp_path):
    body = {"completed": 60, "request_rate": 4.0, "total_input_tokens": 30_000, "total_output_tokens": 6_000}
    (path := tmp_path / "summary.json").write_text(json.dumps(body | {"mean_ttft_ms": 40.0, "p99_ttft_ms": 90.0, "mean_tpot_ms": 8.0}))
    (report,) = json.loads(run("validate", "--run", str(path), *WHERE, "--transferred", "--json", "--draws", "4").stdout)
    measured = {each["figure"]: each["measured"] for each in report["figures"]}
    assert measured == pytest.approx({"mean_ttft_ms": 40.0, "p99_ttft_ms": 90.0, "mean_tpot_ms": 8.0, "mean_e2el_ms": 40.0 + 99 * 8.0})
