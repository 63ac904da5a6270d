"""`scheduling-policy=priority` lets requests of a lower number go first; without it the trace's priorities change nothing."""

import json

from sim.results.run_files import read_run
from tests.cli import run

CALLS = [{"arrival_s": 0.001 * i, "prompt_tokens": 200, "output_tokens": 40, "priority": i % 2} for i in range(40)]


def waits(tmp_path, *arguments):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(call) + "\n" for call in CALLS))
    out = tmp_path / "-".join(("run", *arguments))
    result = run(
        "simulate",
        "--trace",
        str(trace),
        "--gpu",
        "A10",
        "--model",
        "Llama-3.1-8B",
        "--max-model-len",
        "auto",
        "--max-num-seqs",
        "4",
        "--out",
        str(out),
        *arguments,
    )
    assert result.code == 0, result.stderr
    columns = read_run(out / "run.nc")[0].requests
    return columns["scheduled_s"] - columns["arrival_s"]


def test_order(tmp_path):
    by_arrival, by_priority = waits(tmp_path), waits(tmp_path, "--engine-option", "scheduling-policy=priority")
    assert abs(by_arrival[::2].mean() - by_arrival[1::2].mean()) < 0.1 * by_arrival.mean()
    # all but the first few of the second class wait for the first to be through
    assert by_priority[9::2].min() > by_priority[8::2].max() - 1.0
    assert by_priority[::2].mean() < 0.6 * by_priority[1::2].mean()


def test_a_priority_that_is_no_number_is_named(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"arrival_s": 0, "prompt_tokens": 9, "output_tokens": 4, "priority": "high"}\n')
    result = run("simulate", "--trace", str(trace), "--gpu", "A10", "--model", "Llama-3.1-8B", "--max-model-len", "auto")
    assert result.code == 2
    assert "line 1: priority must be a whole number, got 'high'" in result.stderr
