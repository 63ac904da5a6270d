"""All-reduce over real processes (gloo, on the CPU): rows by size, and a failing rank named."""

import pytest

from hw.suites import all_reduce_sizes as all_reduce
from sim.errors import SimctlError

pytest.importorskip("torch")


def test_two_ranks_give_a_time_for_every_size() -> None:
    rows = all_reduce.measure(2, "gloo", sizes=(2**10, 2**12), repeats=3)
    assert [(r["what"], r["size_bytes"], r["gpus"], r["value_n"]) for r in rows] == [
        ("all_reduce", 2**10, 2, 3),
        ("all_reduce", 2**12, 2, 3),
    ]
    assert all(0 < r["value_p25"] <= r["value_median"] <= r["value_p75"] < 5 for r in rows)


def test_a_failing_rank_is_an_error_with_its_words() -> None:
    with pytest.raises(SimctlError, match=r"rank \d ended with code 1: .*nonsense"):
        all_reduce.measure(1, "nonsense", sizes=(2**10,))
