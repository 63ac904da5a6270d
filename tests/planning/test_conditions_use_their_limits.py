"""A condition says how much of its limit a run uses."""

import json

import pytest

from sim.errors import UsageError
from sim.slo import limit_of, parse_slo
from tests.cli import run


def test_conditions_use_their_limits():
    good, failed, tpot = parse_slo(["good>=90%,failed<=0.1 tpot:p50<=20ms"], {"ttft": 100.0})
    summary = {"request_goodput": 9.5, "duration": 10.0, "num_prompts": 100, "completed": 95, "failed": 5, "median_tpot_ms": 30.0}
    assert good.limit_used(summary) == pytest.approx(0.5)
    assert failed.limit_used(summary) == pytest.approx(0.5)
    assert tpot.limit_used(summary) == pytest.approx(1.5)
    assert tpot.limit_used({"median_tpot_ms": float("nan")}) == float("inf")
    with pytest.raises(UsageError, match="not a condition"):
        parse_slo(["tpot:p50<1.2.3ms"], {})


@pytest.mark.parametrize("text", ["p99_ttft_ms<=2000", "median_tpot_ms<50", "p50_e2el_ms<900"])
def test_a_figure_by_its_name_is_the_same_condition(text):
    name, _, limit = text.replace("<=", "<").partition("<")
    statistic, latency, _ = name.split("_")
    other = parse_slo([f"{latency}:{statistic.replace('median', 'p50')}<{limit}ms"], {})[0]
    found = parse_slo([text], {})[0]
    assert (found.figure, found.limit) == (other.figure, other.limit) == limit_of(other.text) == limit_of(text)


def test_a_goal_takes_the_words_of_an_slo():
    asked = ("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "20", "--request-rate", "2", "--draws", "0", "--json")
    goals = [json.loads(run(*asked, "--goal", goal).stdout)["goal"] for goal in ("ttft:p99<2s", "p99_ttft_ms<=2000")]
    assert goals[0] == goals[1]
    assert run(*asked, "--goal", "good:p99<2s").code == 2
