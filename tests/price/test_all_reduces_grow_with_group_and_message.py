"""An all-reduce's bytes: exact for two GPUs, one-shot for small messages, never falling with a byte more, as measured for large ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost.all_reduce import GROUPS, LARGE_BYTES, LARGE_SHARE, wire_bytes
from sim.specs.gpus import get_gpu, list_gpus

BYTES = st.floats(1.0, 1e9)
GPU = st.sampled_from([None, *map(get_gpu, list_gpus())])


@given(st.floats(1.0, LARGE_BYTES), GPU)
def test_two_gpus_carry_the_message_once(size, gpu):
    assert wire_bytes(size, 2, gpu) == size


@given(BYTES, st.floats(1.0, 10.0), st.sampled_from([3, 4, 6, 8, 16]), GPU)
def test_a_larger_message_never_takes_fewer_bytes(size, factor, gpus, gpu):
    assert wire_bytes(size * factor, gpus, gpu) >= wire_bytes(size, gpus, gpu)


@given(st.lists(BYTES, min_size=1, max_size=5), st.sampled_from([1, 2, 4, 8]), GPU)
def test_arrays_are_numbers_one_by_one(sizes, gpus, gpu):
    assert np.array_equal(wire_bytes(np.array(sizes), gpus, gpu), [wire_bytes(size, gpus, gpu) for size in sizes])


@pytest.mark.parametrize("gpus", [4, 8])
def test_small_messages_are_read_from_all_others(gpus):
    assert wire_bytes(65536.0, gpus, get_gpu("H100")) == (gpus - 1) * 65536.0


def test_a_switch_that_sums_makes_eight_gpus_cheaper_than_four():
    large = [wire_bytes(64e6, gpus, get_gpu("H100")) for gpus in (2, 4, 8)]
    assert large[0] < large[2] < large[1]


@pytest.mark.parametrize(
    ("gpu", "four", "eight"), [("A100-80G", 1.35, 1.55), ("H100", 1.21, 1.14), ("H200", 1.22, 1.15), ("B200", 1.23, 1.38)]
)
def test_large_messages_take_what_was_measured_of_the_chip(gpu, four, eight):
    assert [wire_bytes(64e6, gpus, get_gpu(gpu)) / 64e6 for gpus in (4, 8)] == pytest.approx([four, eight])


def test_siblings_have_their_chips_groups_and_others_a_ring():
    assert wire_bytes(64e6, 8, get_gpu("GH200")) == 64e6 * GROUPS["H100"][8]
    assert wire_bytes(64e6, 4, get_gpu("A40")) == 64e6 * 1.5


@pytest.mark.parametrize(("gpu", "share"), [("H100", LARGE_SHARE), ("GH200", LARGE_SHARE), ("A100-80G", LARGE_SHARE), ("A40", 1.0)])
def test_bytes_beyond_the_largest_that_engines_send_take_less_where_that_was_measured(gpu, share):
    more = wire_bytes(3 * LARGE_BYTES, 2, get_gpu(gpu)) - wire_bytes(LARGE_BYTES, 2, get_gpu(gpu))
    assert more == pytest.approx(share * 2 * LARGE_BYTES)
