"""Benchmark cells on small shapes, timed by a stand-in: every kernel meets its float64 gate before and after, and a wrong one is named."""

import math

import numpy as np
import pytest
import torch

from kernels import bench, bench_cells, bench_inputs, timing
from kernels.dense_decode import dense_decode
from tests.kernels.caches import DEVICE


@pytest.fixture(autouse=True)
def no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call every candidate once instead of replaying its CUDA graph; one input set."""

    def interleaved(candidates, repeats, **_) -> dict[str, np.ndarray]:
        for calls in candidates.values():
            calls[0]()
        return {name: np.full(repeats, 2.0) for name in candidates}

    monkeypatch.setattr(timing, "interleaved", interleaved)
    monkeypatch.setattr(bench_inputs, "BEYOND_L2", 1)
    monkeypatch.setattr(bench_cells, "BEYOND_L2", 1)


def made(log: list[str]) -> bench_cells.Bench:
    return bench_cells.Bench(8.0, 4.0, 2.0, repeats=3, log=log.append, device=DEVICE)


def cell(batch: int = 2, context: int = 5 * bench_inputs.PAGE, heads_q: int = 3, heads_kv: int = 1, d: int = 16) -> bench_inputs.BenchCell:
    torch.manual_seed(0)
    return bench_inputs.cell(bench_inputs.pool(2 * batch * context, heads_kv, d, device=DEVICE), batch, context, heads_q, heads_kv, d)


def gated(rows: list[dict], ours: tuple[str, ...]) -> list[dict]:
    """Rows of `ours`, all of which met their gates twice."""
    found = [r for r in rows if r["variant"] in ours and r["error_bound"] == r["error_bound"]]
    assert {r["variant"] for r in found} == set(ours)
    assert all(r["error_before"] <= r["error_bound"] and r["error_after"] <= r["error_bound"] for r in found)
    assert bench.failed(rows) == []
    return found


def test_dense_decode_of_every_page_order() -> None:
    log: list[str] = []
    c = cell()
    rows = gated(bench_cells.dense(made(log), c), ("paged", "paged_in_order", "contiguous"))
    assert {(r["median"], r["moved"], r["of_floor"]) for r in rows} == {(2.0, c.kv_bytes, c.kv_bytes / 8.0 / 2.0)}
    assert len(log) >= 3


@pytest.mark.parametrize("k", [2, 5])
def test_selection_and_gather(k: int) -> None:
    """With k = 5 there are fewer candidates than blocks to choose."""
    rows = bench_cells.sparse(made([]), cell(batch=3 - k // 2, context=(4 + k // 2) * bench_inputs.PAGE), k)
    gated(rows, ("minmax_fp8", "minmax"))
    assert [r["op"] for r in rows] == ["select_gather", "select", "gather"] * 2


def test_gated_delta_of_both_state_dtypes() -> None:
    rows = gated(bench_cells.gdn(made([]), 3, 2, 1, d=16), ("f32_state", "bf16_state"))
    assert [r["moved"] for r in rows] == [2 * 3 * 2 * 256 * 4, 2 * 3 * 2 * 256 * 2]
    assert all(r["of_floor"] == r["moved"] / 4.0 / 2.0 for r in rows)


def test_host_gather_zero_copy_and_staged() -> None:
    rows = gated(bench_cells.host(made([]), 8 * bench_inputs.PAGE, 2, 3, 1, 16, sets=2), ("zero_copy_64", "staged"))
    assert all(math.isclose(r["rate"], 2 * 2 * 128 * 16 * 2 / 2.0) for r in rows)


def test_a_wrong_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_cells, "dense_decode", lambda *args, **options: dense_decode(*args, **options) * 1.05)
    rows = bench_cells.dense(made([]), cell())
    assert {r["variant"] for r in bench.failed(rows)} == {"paged", "paged_in_order", "contiguous"}
    assert all(math.isnan(r["median"]) for r in bench.failed(rows))
