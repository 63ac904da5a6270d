"""A reserve is what a loss can take: bought, but not counted on to meet the SLO."""

import json

import pytest

from tests.cli import run

ASKED = ("plan", "--gpu", "L40S", "--model", "Llama-3.1-8B", "--num-prompts", "24", "--request-rate", "40", "--quick", "--workers", "1")
SLO = ("--slo", "ttft:p90<500ms", "--json")


@pytest.fixture(scope="module")
def bare():
    return json.loads(run(*ASKED, *SLO).stdout)["winner"]


@pytest.mark.parametrize(("reserve", "more"), [("replica", 1), ("node", 2)])
def test_so_many_more_are_bought(bare, reserve, more):
    found = json.loads(run(*ASKED, *SLO, "--reserve", reserve, "--gpus-per-node", "2").stdout)["winner"]
    assert bare["replicas"] == found["replicas"] > 1
    assert (found["stand_by"], bare["stand_by"]) == (more, 0)
    assert found["usd_per_hour"] == pytest.approx(bare["usd_per_hour"] / bare["replicas"] * (bare["replicas"] + more))
    assert found["chance"] == bare["chance"]


def test_a_node_takes_no_more_than_there_are(bare):
    found = json.loads(run(*ASKED, *SLO, "--reserve", "node").stdout)["winner"]
    assert found["stand_by"] == found["replicas"]
