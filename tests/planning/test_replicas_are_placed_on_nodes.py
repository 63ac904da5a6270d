"""Replicas are placed on nodes: none lies on two that fits on one, larger ones first, and a plan of several nodes says how many."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.planning.choices import Choice, Part


def choice(*parts):
    return Choice("", SimpleNamespace(fleet=None), tuple(Part(n, 1.0, gpus, 0, node) for n, gpus, node in parts))


@pytest.mark.parametrize(
    ("parts", "count", "nodes"),
    [
        ([(1, 1, 8)], 8, 1),
        ([(1, 1, 8)], 9, 2),
        ([(1, 3, 8)], 4, 2),  # two replicas of three to a node, two GPUs idle on each
        ([(1, 16, 8)], 2, 4),
        ([(1, 4, 8), (2, 2, 8)], 1, 1),
        ([(1, 6, 8), (1, 4, 8)], 1, 2),
        ([(1, 12, 8)], 2, 3),  # a node each, and their halves share the third
    ],
)
def test_by_hand(parts, count, nodes):
    assert choice(*parts).nodes_of(count) == nodes


@given(st.integers(1, 16), st.sampled_from([4, 8]), st.integers(1, 40))
def test_nodes_hold_the_gpus_and_no_more_than_one_each(gpus, node, count):
    nodes = choice((1, gpus, node)).nodes_of(count)
    assert -(-gpus * count // node) <= nodes <= count * -(-gpus // node)
