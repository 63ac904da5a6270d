"""The chance that a figure meets its goal counts unknown rates and the run's own noise, and carries its Monte-Carlo error."""

import json

import numpy as np
import pytest

from sim.results.chance import CERTAINTY, STAGES, chance_of
from simctl.text.run_text import conclusion
from tests.cli import run

DRAWN = ["simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "60", "--request-rate", "12", "--random-length-cv", "1"]
TRACED = ["simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--trace"]


def trials(chance, seed):
    """Independent trials that hold with this chance."""
    drawn = np.random.default_rng(seed).random(STAGES[-1]) < chance
    return lambda trial: bool(drawn[trial])


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.9, 0.95, 0.98, 1.0])
def test_the_interval_holds_the_chance_and_the_side_is_rarely_wrong(chance):
    found = [chance_of(trials(chance, seed)) for seed in range(200)]
    assert np.mean([f.low <= chance <= f.high for f in found]) >= 0.95
    wrong = [f.certain is not None and f.certain != (chance >= CERTAINTY) for f in found]
    assert np.mean(wrong) <= 0.05


@pytest.mark.parametrize(("chance", "certain"), [(0.9, False), (0.98, True), (1.0, True)])
def test_what_is_concluded_does_not_hang_on_the_seed(chance, certain):
    assert np.mean([chance_of(trials(chance, seed)).certain is certain for seed in range(200)]) >= 0.95


def test_trials_stop_when_they_have_told():
    assert chance_of(lambda _: False).trials == STAGES[0]
    assert chance_of(lambda _: True).trials == 100
    assert chance_of(trials(0.951, 0)).trials == STAGES[-1]


def test_chance_rises_with_the_limit_and_its_ends_are_certain():
    limits = (0.001, 25, 40, 60, 1e6)
    chances = [json.loads(run(*DRAWN, "--goal", f"p99_ttft_ms<={limit}", "--json").stdout)["goal"]["chance"] for limit in limits]
    assert chances == sorted(chances)
    assert (chances[0], chances[-1]) == (0.0, 1.0)


def test_a_trace_takes_its_noise_from_the_run(tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(f'{{"arrival_s": {i / 8}, "prompt_tokens": {100 + 37 * i % 900}, "output_tokens": 4}}\n' for i in range(40)))
    said = json.loads(run(*TRACED, str(trace), "--json").stdout)
    middle = said["median_ttft_ms"]
    chances = [
        json.loads(run(*TRACED, str(trace), "--goal", f"median_ttft_ms<={middle * by}", "--json").stdout)["goal"]["chance"]
        for by in (0.5, 1.0, 2.0)
    ]
    assert chances[0] < 0.1 < chances[1] < 0.9 < chances[2]


def said(path) -> str:
    """Its answer with the lines joined again."""
    return " ".join(run("run", str(path)).stdout.split())


def test_a_study_names_the_first_cell_that_is_certain(tmp_path):
    text = "question: How many?\ncommand: simulate\n"
    text += "options: {gpu: H100, model: Llama-3.1-8B, num-prompts: 60, request-rate: 15, goal: GOAL}\n"
    text += "sweep: {replicas: [1, 2]}\nreport: [p99_ttft_ms, goal.chance]\n"
    path = tmp_path / "s.yaml"
    path.write_text(text.replace("GOAL", "p99_ttft_ms<=1e6"))
    assert "=> replicas 1: the first to hold p99_ttft_ms <= 1,000,000 with a chance of at least 95 %" in said(path)
    path.write_text(text.replace("GOAL", "p99_ttft_ms<=0.001"))
    assert "=> none holds p99_ttft_ms <= 0.001 with a chance of at least 95 % for sure; the best is 0.00, 0.00-" in said(path)


def test_a_count_that_may_do_opens_a_range():
    metric = {"metric": "p99_ttft_ms", "limit": 250.0, "chance_low": 0.5, "chance_high": 1.0, "trials": 200}
    goals = [metric | {"certain": certain, "chance": chance} for certain, chance in ((False, 0.1), (None, 0.9), (True, 0.99))]
    text = conclusion([{"gpu": "H100", "replicas": count} for count in "234"], goals)
    assert text.startswith("=> gpu H100, replicas 3 to 4: gpu H100, replicas 4 is the first to hold p99_ttft_ms <= 250 with")
    assert text.endswith("Undecided at 95 %: gpu H100, replicas 3 (0.90, 0.50-1.00 by 200 trials).")


@pytest.mark.parametrize("goal", ["p99_ttft_ms", "p99_ttft_ms<=x", "p99_ttfft_ms<=3"])
def test_a_wrong_goal_is_one_line(goal):
    result = run(*DRAWN, "--goal", goal)
    assert result.code == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
