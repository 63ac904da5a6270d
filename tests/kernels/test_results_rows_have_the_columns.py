import pytest

from kernels import bench, results


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(ValueError, match="speed"):
        results.row("dense", "dense_decode", "paged", speed=1.0)


def test_a_failed_gate_of_a_kernel_counts_and_one_of_a_baseline_does_not() -> None:
    mine = results.row("dense", "dense_decode", "paged", note="failed its gate: not timed")
    theirs = results.row("dense", "dense_decode", "sdpa_flash_gqa", note="did not run: no such backend")
    wrong = results.row("sparse", "select", "minmax", note="failed its gate: selection is not the top k of its scores")
    assert bench.failed([mine, theirs, wrong]) == [mine, wrong]
