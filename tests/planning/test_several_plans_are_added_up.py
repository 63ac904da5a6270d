"""Plans of several models: each by itself, one bill, and a chance of all that holds whatever they have in common."""

import json
from types import SimpleNamespace

import pytest

from sim.planning.choices import Choice, Part
from sim.planning.together import together
from sim.results.chance import Chance
from tests.cli import run

SCENARIO = """question: a?
command: plan
options: {{gpu: [H100], model: {model}, request-rate: 4, random-output-len: 9, for: {lasts}, slo: "ttft:p99<{limit}",
  price: [H100={price}], quick: true}}
"""


def answer(met, trials, count):
    chance = Chance(met, trials, met / trials - 0.02, met / trials + 0.02)
    choice = Choice("a", None, (Part(1, 3.0, 2),))
    win = None if chance.certain is False else SimpleNamespace(chance=chance, choice=0, replicas=count)
    return SimpleNamespace(plan=SimpleNamespace(winner=win, choices=[choice], cost=lambda tried: choice.cost(tried.replicas)))


def test_the_chance_of_all_is_what_each_misses_taken_off():
    total = together([answer(196, 200, 1), answer(194, 200, 3)])
    assert (total.gpus, total.usd_per_hour) == (8, 12.0)
    assert total.chance == pytest.approx(0.95)
    assert total.chance_low == pytest.approx(0.91)
    assert "below 0.95" not in total.text
    assert "That is below 0.95" in together([answer(194, 200, 1)] * 2).text


def test_no_sum_without_a_winner():
    assert together([answer(200, 200, 1), answer(20, 200, 1)]) is None


def test_two_scenarios_are_planned_and_summed(tmp_path):
    files = [str(tmp_path / name) for name in ("chat.yaml", "rag.yaml")]
    for file, model, price, limit in zip(files, ("Llama-3.1-8B", "Qwen2.5-7B"), (2, 3), ("2s", "3s"), strict=True):
        (tmp_path / file).write_text(SCENARIO.format(model=model, price=price, limit=limit, lasts="20s"))
    found = json.loads(run("plan", *files, "--workers", "1", "--json").stdout)
    assert [each["model"] for each in found["plans"]] == ["Llama-3.1-8B", "Qwen2.5-7B"]
    assert (found["together"]["gpus"], found["together"]["usd_per_hour"]) == (2, 5.0)
    assert all("front" not in each for each in found["plans"])  # as `quick` of the scenario says
    alone = run("plan", files[0], "--workers", "1", "--quick", "--json")
    assert json.loads(alone.stdout) == found["plans"][0]
    result = run("plan", *files, "--emit", "vllm")
    assert (result.code, result.stdout, result.stderr) == (2, "", "simctl: --emit takes one scenario\n")
