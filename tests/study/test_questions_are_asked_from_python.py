"""What a command line can ask, Python can: the same figures, from objects alone."""

import json

import pytest

from sim import Deployment, RateSource, Simulate, UsageError, Workload, kv_block_interval, load_rates, step_time
from sim.rates.serving import packaged_overhead, write_overheads
from sim.study.deployment import plan_engine
from tests.cli import run

ASKED = (
    "simulate",
    "--gpu",
    "H100",
    "--model",
    "Llama-3.1-8B",
    "--num-prompts",
    "20",
    "--request-rate",
    "4",
    "--draws",
    "2",
    "--no-iterations",
)
D = Deployment.of("Llama-3.1-8B", "H100")
LOAD = Workload.drawn(20, request_rate=4.0, most_tokens=D.model.max_context)


def asked(rates=None, workload=LOAD, deployment=D, **more):
    return Simulate(deployment, workload, rates or RateSource(), draws=2, keep_iterations=False, **more)


def test_a_command_line_and_an_object_give_the_same():
    shown = json.loads(run(*ASKED, "--goal", "p99_ttft_ms<=100000", "--json").stdout)
    answer = asked(goal=("p99_ttft_ms", 100000.0)).answer().to_dict()
    assert shown["p99_ttft_ms"] == answer["p99_ttft_ms"]
    assert shown["run_noise_90"] == json.loads(json.dumps(answer["run_noise_90"]))
    assert shown["goal"] == json.loads(json.dumps(answer["goal"]))


def test_an_overhead_that_was_saved_is_taken(tmp_path):
    from dataclasses import replace

    file = tmp_path / "overhead.json"
    host = packaged_overhead()
    file.write_text(write_overheads([host]))
    same = asked(RateSource(overhead=file)).answer()
    assert same.summary == asked().answer().summary
    file.write_text(write_overheads([replace(host, request_s=host.request_s + 0.1)]))
    slower = json.loads(run(*ASKED, "--overhead", str(file), "--json").stdout)
    assert slower["mean_ttft_ms"] == pytest.approx(same.summary["mean_ttft_ms"] + 100.0, rel=0.02)


def test_a_file_that_is_no_overhead_is_refused(tmp_path):
    file = tmp_path / "none.json"
    file.write_text("{}")
    refused = run(*ASKED, "--overhead", str(file))
    assert refused.code == 1
    assert "not a serving overhead" in refused.stderr
    assert "leave out --in-process" in run(*ASKED, "--overhead", str(file), "--in-process").stderr


def test_arrays_are_a_trace():
    trace = LOAD.trace
    given = Workload.from_arrays(trace.arrival_s, trace.prompt_tokens, trace.output_tokens)
    assert asked(workload=given).answer().summary == asked().answer().summary
    with pytest.raises(UsageError, match=r"request 1: arrivals out of order"):
        Workload.from_arrays([1.0, 0.5], [1, 1], [1, 1])
    with pytest.raises(UsageError, match="one length"):
        Workload.from_arrays([1.0], [1, 1], [1, 1])


def test_records_of_draws_are_those_behind_the_intervals():
    answer = asked().answer()
    ttft = [1e3 * (each.requests["first_token_s"] - each.requests["arrival_s"]).mean() for each in answer.draw_records(2)]
    assert ttft == pytest.approx(answer.draws["mean_ttft_ms"])


def test_terms_of_an_iteration_add_up_to_its_price():
    price = step_time(D, decodes=[2048] * 8, chunks=[(512, 1024)])
    assert sum(price.terms.values()) == pytest.approx(price.seconds, rel=1e-12)
    assert price.low < price.seconds < price.high
    assert price.seconds > step_time(D, decodes=[2048] * 8, rates=load_rates(D)).seconds


def test_an_interval_of_blocks_holds_the_predicted_number():
    low, high = kv_block_interval(D)
    assert low <= plan_engine(D)[0].num_gpu_blocks <= high


def test_a_knee_caps_the_batch_of_its_workload():
    capped = Deployment.of("Llama-3.1-8B", "H100", batch_knee=0.65)
    assert 1 <= asked(deployment=capped).study().deployment.limits.max_num_seqs < 1024
    with pytest.raises(UsageError, match="not both"):
        Deployment.of("Llama-3.1-8B", "H100", batch_knee=0.65, max_num_seqs=8)
