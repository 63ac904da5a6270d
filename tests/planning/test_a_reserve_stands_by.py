"""A reserve is what a loss can take: bought, but not counted on to meet the SLO."""

import pytest

from sim.workload.workload import Workload
from tests.planning.offered import choices


def offered(reserve="none", **more):
    return choices(Workload.drawn(60, length_cv=1.0), "L40S", reserve=reserve, tp=2, **more)[0]


@pytest.mark.parametrize(("reserve", "more"), [("none", 0), ("replica", 1), ("node", 4)])
def test_so_many_more_are_bought(reserve, more):
    bare, choice = offered(), offered(reserve)
    assert choice.spares(6) == more
    assert choice.cost(6) == pytest.approx(bare.cost(6 + more))
    assert choice.gpus_of(6) == 2 * (6 + more)
    assert choice.study_of(6).deployment.replicas == 6


def test_a_node_takes_no_more_than_there_are():
    assert offered("node").spares(3) == 3
    assert offered("node", gpus_per_node=4).spares(3) == 2


def test_each_pool_keeps_its_own():
    assert offered("replica", pools="prefill-decode").replicas(2) == [3, 3]


def test_all_of_it_is_within_the_most_gpus():
    assert offered("replica").most(8) == 3
    assert offered("node").most(8) == 2
