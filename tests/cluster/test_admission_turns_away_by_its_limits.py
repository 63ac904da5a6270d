"""Queue limit, token bucket and TTFT goal turn away what exceeds them, and nothing else; the knee caps the batch where efficiency ends."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster.admission import Admission, AdmissionLimits, batch_cap
from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.errors import UsageError
from sim.results.metrics import summarise
from tests.cli import run as command
from tests.runs import calls, configs, run, trace_of


def asks(prompt, output=1):
    return Request("r", 0.0, prompt, output)


def test_queue_limit_counts_requests_without_a_first_token():
    gate = Admission(AdmissionLimits(max_queue=2))
    first = asks(1)
    assert [gate.admits(each, 0.0) for each in (first, asks(1), asks(1))] == [True, True, False]
    gate.first_token(first)
    assert gate.admits(asks(1), 0.0)


def test_token_bucket_fills_at_its_rate_up_to_its_burst():
    gate = Admission(AdmissionLimits(bucket=(10.0, 50.0)))
    assert gate.admits(asks(40, 10), 0.0)
    assert not gate.admits(asks(10, 10), 1.9)
    assert gate.admits(asks(10, 10), 2.0)
    assert not gate.admits(asks(41, 10), 1000.0)
    assert gate.admits(asks(40, 10), 1000.0)


def test_ttft_goal_counts_the_prompts_ahead():
    gate = Admission(AdmissionLimits(ttft_s=0.5), prefill_tokens_per_s=1000.0)
    assert gate.admits(asks(300), 0.0)
    assert not gate.admits(asks(201), 0.0)
    assert gate.admits(asks(200), 0.0)


def test_what_is_turned_away_costs_nothing_and_is_counted():
    config = EngineConfig(num_gpu_blocks=64, max_num_seqs=1)
    record, _ = run(trace_of([(0.0, 10, 5)] * 6), config, admission=Admission(AdmissionLimits(max_queue=2)))
    assert record.requests["rejected"].sum() == 4
    assert set(record.requests["replica"][record.requests["rejected"] == 1]) == {-1}
    figures = summarise(record)
    assert (figures["num_prompts"], figures["completed"], figures["failed"]) == (6, 2, 4)
    assert record.iterations["sampled"].sum() == 10
    assert figures["waiting_at_last_arrival"] == 0


@given(calls, configs, st.integers(1, 4), st.none() | st.integers(1, 3))
@settings(max_examples=60)
def test_every_request_finishes_or_is_turned_away(requests, config, most, clients):
    gate = Admission(AdmissionLimits(max_queue=most))
    record, scheduler = run(trace_of(requests), config, admission=gate, max_concurrency=clients)
    turned_away = record.requests["rejected"] > 0
    assert len(turned_away) == len(requests)
    assert (np.isfinite(record.requests["finish_s"]) == ~turned_away).all()
    assert scheduler.kv_blocks_used() == 0


@pytest.mark.parametrize("wrong", [{"max_queue": 0}, {"bucket": (0.0, 1.0)}, {"bucket": (1.0, float("nan"))}, {"ttft_s": -1.0}])
def test_absurd_limits(wrong):
    with pytest.raises(UsageError):
        AdmissionLimits(**wrong)


@given(st.floats(0.01, 10), st.floats(0.001, 2), st.floats(0.05, 0.95))
def test_batch_cap_is_the_last_batch_above_tau(fixed, slope, tau):
    def step(batch):
        return fixed + slope * batch

    cap = batch_cap(step, tau, 500)
    assert step(1) / step(cap) >= tau
    assert cap == 500 or step(1) / step(cap + 1) < tau


def test_knee_from_the_command_line():
    figures = {}
    for tau in ("0.9", "0.65"):
        result = command(
            "simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "40", "--random-input-len", "8000",
            "--max-num-seqs", f"knee:{tau}", "--draws", "0", "--json",
        )  # fmt: skip
        assert result.code == 0, result.stderr
        figures[tau] = json.loads(result.stdout)
    low, high = (figures[tau]["provenance"]["max_num_seqs"] for tau in ("0.9", "0.65"))
    assert 1 <= low < high < 1024
    assert figures["0.9"]["max_running"] <= low


@pytest.mark.parametrize("cap", ["knee:0", "knee:1", "knee:x", "0", "cap:0.5", "1.5"])
def test_malformed_caps_are_one_line(cap):
    result = command("simulate", "--gpu", "H100", "--num-prompts", "4", "--max-num-seqs", cap)
    assert (result.code, result.stderr.count("\n")) == (2, 1)


def test_admission_from_the_command_line():
    common = (
        "simulate",
        "--gpu",
        "A10",
        "--model",
        "Llama-3.1-8B",
        "--max-model-len",
        "auto",
        "--num-prompts",
        "60",
        "--request-rate",
        "20",
        "--json",
    )
    limits = {
        "rejected_full_queue": ("--admission", "max-queue=3"),
        "rejected_token_bucket": ("--admission", "token-bucket=2000:4000"),
        "rejected_ttft_goal": ("--admission", "admit-ttft=500"),
    }
    for by, limit in limits.items():
        result = command(*common, *limit)
        assert result.code == 0, result.stderr
        figures = json.loads(result.stdout)
        assert 0 < figures["failed"] < 60
        assert figures["completed"] + figures["failed"] == 60
        turned_away = {name: count for name, count in figures.items() if name.startswith("rejected_")}
        assert turned_away == dict.fromkeys(turned_away, 0) | {by: figures["failed"]}
