"""A reserve is what a loss can take: bought, but not counted on to meet the SLO."""

import pytest

from simctl.commands.plan import command
from simctl.plan_choices import choices_of

ASKED = ["--gpu", "L40S", "--tp", "2", "--model", "Llama-3.1-8B", "--num-prompts", "60", "--random-length-cv", "1"]


def offered(*arguments):
    return choices_of(command.make_context("plan", [*ASKED, *arguments]).params)[0]


@pytest.mark.parametrize(("reserve", "more"), [("none", 0), ("replica", 1), ("node", 4)])
def test_so_many_more_are_bought(reserve, more):
    bare, choice = offered(), offered("--reserve", reserve)
    assert choice.spares(6) == more
    assert choice.cost(6) == pytest.approx(bare.cost(6 + more))
    assert choice.gpus_of(6) == 2 * (6 + more)
    assert choice.study_of(6).deployment.replicas == 6


def test_a_node_takes_no_more_than_there_are():
    assert offered("--reserve", "node").spares(3) == 3
    assert offered("--reserve", "node", "--gpus-per-node", "4").spares(3) == 2


def test_each_pool_keeps_its_own():
    assert offered("--reserve", "replica", "--pools", "prefill-decode").replicas(2) == [3, 3]


def test_all_of_it_is_within_the_most_gpus():
    assert offered("--reserve", "replica").most(8) == 3
    assert offered("--reserve", "node").most(8) == 2
