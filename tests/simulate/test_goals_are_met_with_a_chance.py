"""The chance that a figure meets its goal counts what is not known about the rates and the run's own noise, both."""

import json
import math
from statistics import NormalDist

import numpy as np
import pytest

from sim.results.intervals import chance_within
from tests.cli import run

DRAWN = ["simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "60", "--request-rate", "12", "--random-length-cv", "1"]


def test_log_normal_rates_and_repeats_give_the_normal_probability():
    normal = np.array([NormalDist().inv_cdf((i + 0.5) / 400) for i in range(400)])
    draws, repeats = 100.0 * np.exp(0.10 * normal), 100.0 * np.exp(0.20 * normal)
    limit = 120.0
    expected = 0.5 * (1 + math.erf(math.log(limit / 100.0) / math.hypot(0.10, 0.20) / math.sqrt(2)))
    assert chance_within(limit, 100.0, draws, repeats, None) == pytest.approx(expected, abs=0.002)


def test_without_repeats_the_noise_interval_stands_for_them():
    noise = (100.0 * math.exp(-1.6449 * 0.2), 100.0 * math.exp(1.6449 * 0.2))
    assert chance_within(100.0, 100.0, (), (), noise) == pytest.approx(0.5)
    assert chance_within(100.0 * math.exp(0.2), 100.0, (), (), noise) == pytest.approx(0.841, abs=0.05)


def test_one_source_alone_is_its_own_share():
    assert chance_within(2.5, 2.0, [1.0, 2.0, 3.0, 4.0], (), None) == 0.5
    assert chance_within(2.5, 2.0, (), [1.0, 2.0, 3.0, 4.0], None) == 0.5
    assert chance_within(2.5, 2.0, (), (), None) is None


def test_chance_rises_with_the_limit_and_its_ends_are_certain():
    limits = (0.001, 25, 40, 60, 1e6)
    chances = [json.loads(run(*DRAWN, "--goal", f"p99_ttft_ms<={limit}", "--json").stdout)["goal"]["chance"] for limit in limits]
    assert chances == sorted(chances)
    assert (chances[0], chances[-1]) == (0.0, 1.0)


def test_a_study_names_the_first_cell_that_is_certain(tmp_path):
    text = "question: How many?\ncommand: simulate\n"
    text += "options: {gpu: H100, model: Llama-3.1-8B, num-prompts: 60, request-rate: 40, goal: GOAL}\n"
    text += "sweep: {replicas: [1, 2]}\nreport: [p99_ttft_ms, goal.chance]\n"
    path = tmp_path / "s.yaml"
    path.write_text(text.replace("GOAL", "p99_ttft_ms<=1e6"))
    assert "=> replicas 1: the first to hold p99_ttft_ms <= 1,000,000 with at least 95 %" in run("run", str(path)).stdout
    path.write_text(text.replace("GOAL", "p99_ttft_ms<=0.001"))
    assert "=> none holds p99_ttft_ms <= 0.001 with 95 % certainty; the best chance is 0.00." in run("run", str(path)).stdout


@pytest.mark.parametrize("goal", ["p99_ttft_ms", "p99_ttft_ms<=x", "p99_ttfft_ms<=3"])
def test_a_wrong_goal_is_one_line(goal):
    result = run(*DRAWN, "--goal", goal)
    assert result.code == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
