"""Padding, rows of latent attention, exchanges between ranks and a shared server, counted by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost.api_server import SharedServer
from sim.cost.graphs import CAPTURED, GRAPH_TOKENS, captured_padding
from sim.cost.layer_work import Setting
from sim.cost.mixer_work import latent_attention
from sim.cost.traffic import ALL_TO_ALL_OPS, traffic
from sim.specs.model import LatentAttention
from sim.specs.parallel import Link, Parallel
from sim.specs.precision import Precision
from tests.price.shapes import HYBRID_MOE, departures


@given(st.integers(0, 2 * GRAPH_TOKENS))
def test_padding_is_the_way_to_the_next_captured_size(tokens):
    padding = captured_padding(tokens)
    assert padding == captured_padding(np.array([float(tokens)]))[0]
    if 0 < tokens <= GRAPH_TOKENS:
        assert tokens + padding in CAPTURED
        assert not any(tokens <= size < tokens + padding for size in CAPTURED)
    else:
        assert padding == 0.0


def test_an_element_of_a_latent_rank_and_one_of_its_rotary_part_weigh_the_same():
    def row(rank, rope, tp):
        return latent_attention(LatentAttention(16, None, rank, 128, rope, 128), Setting(2048, Precision(), tp)).row_bytes

    for tp in (1, 2):
        assert row(513, 64, tp) - row(512, 64, tp) == row(512, 65, tp) - row(512, 64, tp) > 0.0


def test_an_exchange_takes_a_message_to_every_other_rank_both_ways():
    parallel = Parallel(1, 4, True, all_to_all=Link(3.0, 2.0))
    moved, ops = traffic(HYBRID_MOE, 0.0, 1, parallel)
    layers = sum(group.count for group in HYBRID_MOE.groups)
    assert ops == pytest.approx(layers * 2 * ALL_TO_ALL_OPS * 4 * parallel.all_to_all.latency)
    reached = 3 * (1 - (1 - 1 / 4) ** 8)  # of three others, by eight experts
    assert moved == pytest.approx(layers * 2 * reached * HYBRID_MOE.hidden * 2 * parallel.all_to_all.byte)
    assert traffic(HYBRID_MOE, 80.0, 2)[1] == pytest.approx(80.0 * Parallel().all_reduce.latency)
    assert traffic(HYBRID_MOE, 80.0, 1)[1] == 0.0


def test_an_empty_server_starts_at_once_whenever_the_first_job_comes():
    server = SharedServer()
    server.arrive(0, 10)
    assert server.next_departure() == 10
    assert departures([5], [10]) == [15]
    assert departures([0, 0], [10, 10]) == [20, 20]
