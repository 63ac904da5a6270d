"""--most-kw leaves only what its cards may draw together; the answer says what they do draw. A rate alone is a load that lasts."""

import json

import pytest

from tests.cli import run

PLAN = ("plan", "--gpu", "H100", "--model", "Llama-3.1-8B", "--request-rate", "4", "--slo", "ttft:p99<2s", "--within", "30s", "--json")


@pytest.mark.slow
def test_the_winner_draws_less_than_its_cards_may():
    win = json.loads(run(*PLAN, "--most-kw", "0.7").stdout)
    assert win["winner"]["power_limit_kw"] == pytest.approx(0.7)
    power = win["power"]
    assert 100.0 < power["low"] < power["watts"] < power["high"]
    assert power["watts"] < 700.0
    assert 0.05 < power["per_token_j"] < 5.0


def test_too_little_power_leaves_nothing():
    found = json.loads(run(*PLAN, "--most-kw", "0.69", "--quick").stdout)
    assert found["winner"] is None
    assert found["choices"][0]["out"] == "needs more than 0.69 kW"


def test_a_card_whose_power_nobody_states_is_refused():
    result = run(*(word.replace("H100", "GB10") for word in PLAN), "--most-kw", "3", "--price", "GB10=1")
    assert result.code == 2
    assert result.stderr.startswith("simctl: --most-kw: the catalogue does not say how much power one GB10 may draw")
