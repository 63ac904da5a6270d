"""The workload options of `simctl simulate`: which go together, and what they make."""

import json
from pathlib import Path

import pytest

from tests.cli import run

DATA = Path(__file__).parents[1] / "data"
AZURE = ("--trace", str(DATA / "small_azure.csv"), "--trace-format", "azure")
SESSIONS = ("--trace", str(DATA / "small_sessions.jsonl"))
WHERE = ("--gpu", "A10", "--model", "Llama-3.1-8B", "--max-model-len", "auto")


def summary(*arguments):
    result = run("simulate", *WHERE, *arguments, "--json", "--draws", "0")
    assert result.code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "what to serve? give --trace FILE, or --num-prompts N"),
        ((*AZURE, "--num-prompts", "5"), "needs --workload-option resample"),
        (
            (*AZURE, "--workload-option", "resample", "--num-prompts", "5"),
            "resample needs --num-prompts and --request-rate or --rate-curve",
        ),
        ((*AZURE, "--random-input-len", "5"), "--random-input-len is for requests that are drawn"),
        ((*AZURE, "--turns", "2"), "--turns is for requests that are drawn"),
        ((*AZURE, "--burstiness", "2"), "--burstiness needs --request-rate or --rate-curve"),
        (("--num-prompts", "5", "--workload-option", "limit=3"), "limit needs a --trace"),
        (("--num-prompts", "5", "--request-rate", "-1"), "request rate must be positive"),
        (("--num-prompts", "5", "--request-rate", "nan"), "request rate must be positive"),
        (("--num-prompts", "5", "--random-length-cv", "-1"), "coefficient of variation"),
        (("--num-prompts", "5", "--random-length-cv", "1e300"), "coefficient of variation"),
        (("--num-prompts", "5", "--request-rate", "1e-300"), "the rate is too low"),
        ((*AZURE, "--workload-option", "rate-scale=1e-300"), "the rate is too low"),
        (("--num-prompts", "99999999999"), "num-prompts"),
        (("--num-prompts", "5", "--engine-option", "num-gpu-blocks=99999999999"), "num-gpu-blocks"),
        (("--num-prompts", "5", "--think-time", "inf"), "not a time (examples: 0, 5, 30s, 2m)"),
        (("--num-prompts", "5000", "--turns", "5000"), "more than"),
        (("--num-prompts", "5", "--router", "dice"), "dice"),
        (("--num-prompts", "5", "--rate-curve", "servegen-dya"), "unknown rate curve 'servegen-dya'; did you mean 'servegen-day'?"),
        (("--num-prompts", "5", "--rate-curve", "servegen-day", "--request-rate", "inf"), "of a curve must be positive and finite"),
        (("--agent-sessions", "5", "--num-prompts", "5"), "give --num-prompts or --agent-sessions, not both"),
        ((*AZURE, "--agent-sessions", "5"), "--agent-sessions draws requests of its own"),
        (("--agent-sessions", "5", "--workload-option", "limit=3"), "limit needs a --trace"),
        (("--agent-sessions", "5", "--random-length-cv", "1"), "--random-length-cv and --random-range-ratio are not for agents"),
        (("--agent-sessions", "5", "--workload-option", "agent-edited-share=1.5"), "the share of edited turns must lie in 0..1"),
        (("--agent-sessions", "5", "--max-model-len", "8K"), "leaves agents no room in contexts of 8192"),
        (("--agent-sessions", "1000000", "--turns", "1000000"), "at most 10,000,000 calls"),
        (("--num-prompts", "5", "--workload-option", "agent-opening-len=3"), "agent-opening-len needs --agent-sessions"),
    ],
)
def test_contradictions_are_one_line(arguments, message):
    result = run("simulate", *WHERE, *arguments)
    assert result.code == 2
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_drawn_requests():
    figures = summary("--num-prompts", "50", "--request-rate", "5", "--random-input-len", "100", "--random-output-len", "9")
    assert figures["num_prompts"] == figures["completed"] == 50
    assert figures["total_input_tokens"] == 5000
    assert figures["total_output_tokens"] == 450


def test_a_request_rate_replaces_the_traces_times():
    slow, fast = (summary(*AZURE, "--request-rate", rate) for rate in ("0.5", "50"))
    assert slow["total_input_tokens"] == fast["total_input_tokens"]
    assert slow["duration"] > 2 * fast["duration"]


def test_empirical_lengths():
    figures = summary(*AZURE, "--workload-option", "resample", "--num-prompts", "20", "--request-rate", "2")
    assert figures["completed"] == 20


def test_a_closed_loop_from_the_command_line():
    one, eight = (summary("--num-prompts", "32", "--max-concurrency", n) for n in ("1", "8"))
    assert one["max_running"] == 1
    assert eight["max_running"] == 8
    assert eight["duration"] < one["duration"]


def test_sessions_reuse_and_rate_scale():
    figures = summary(*SESSIONS, "--think-time", "1.5")
    assert figures["prefix_cache_hit_rate"] > 0.4
    assert summary(*SESSIONS, "--workload-option", "rate-scale=4")["completed"] == 24


def test_a_day_of_traffic_takes_a_day_whatever_draws_it():
    day = ("--rate-curve", "servegen-day", "--request-rate", str(200 / 86_400))
    agents = ("--agent-sessions", "200", "--turns", "1", "--workload-option", "agent-opening-len=100", "--max-model-len", "20K")
    for each in (("--num-prompts", "200"), agents, (*AZURE, "--workload-option", "resample", "--num-prompts", "200")):
        assert summary(*each, *day, "--no-iterations")["duration"] == pytest.approx(86_400, rel=0.3)


def test_agent_sessions_take_the_means_that_are_given():
    arguments = ("--agent-sessions", "8", "--turns", "3", "--random-prefix-len", "64", "--random-output-len", "20")
    figures = summary(
        *arguments, "--workload-option", "agent-opening-len=100", "--random-input-len", "50", "--think-time", "0.1", "--request-rate", "4"
    )
    assert figures["completed"] == figures["num_prompts"] >= 8
    assert figures["total_input_tokens"] < 500 * figures["completed"]
    assert figures["duration"] < 60


def test_replicas_share_the_load():
    arguments = ("--num-prompts", "60", "--request-rate", "6", "--random-input-len", "2000")
    one, three = (summary(*arguments, "--replicas", n) for n in ("1", "3"))
    assert three["mean_ttft_ms"] < one["mean_ttft_ms"]
    assert three["provenance"]["replicas"] == 3


def test_host_overhead_is_charged_once_per_request():
    arguments = ("--num-prompts", "4", "--request-rate", "0.1", "--burstiness", "inf", "--random-input-len", "1000")
    charged, bare = summary(*arguments), summary(*arguments, "--host-rate", "none")
    host = {name: charged["provenance"][f"host_{name}"] for name in ("request_s", "serial_s", "prompt_token_s", "response_s")}
    assert min(host["request_s"] + host["serial_s"], host["response_s"]) > 0
    expected_ms = 1e3 * (host["request_s"] + host["serial_s"] + 2 * 1000 * host["prompt_token_s"] + host["response_s"])
    assert charged["mean_ttft_ms"] - bare["mean_ttft_ms"] == pytest.approx(expected_ms, abs=0.01)
    once_ms = expected_ms - 1e6 * host["prompt_token_s"]  # a prompt is read again before its first token, while the engine goes on
    assert charged["mean_e2el_ms"] - bare["mean_e2el_ms"] == pytest.approx(once_ms, abs=0.01)
