"""The kernels suite over pretend cells: rows come back, a failing cell is recorded, a cut run goes on where it ended."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hw.artifact import SCHEMA, load, write
from hw.journal import Journal
from hw.pace import Budget
from hw.suites import kernels
from kernels import results

Rows = list[dict[str, object]]


def cells(called: list[int], fails: dict[int, BaseException] | None = None) -> Iterator[tuple[str, Callable[[], Rows]]]:
    for n in range(3):

        def call(n: int = n) -> Rows:
            called.append(n)
            if failure := (fails or {}).get(n):
                raise failure
            return [results.row("dense", "attention", "paged", batch=n + 1, context=8192, median=1e-3 * (n + 1), repeats=15)]

        yield "dense", call


def run(journal: Journal, called: list[int], fails: dict[int, BaseException] | None = None, budget: Budget | None = None) -> dict:
    return kernels.measure(cells(called, fails), journal, budget or Budget(None), "test", lambda: None)


def test_rows_come_back_with_units_and_what_is_missing_is_nan(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {})
    attrs = run(journal, [])
    path = write(kernels.dataset(journal.records, {"schema": SCHEMA, "suite": "kernels", **attrs}), tmp_path / "k.nc")
    data = load(path, "kernels")
    assert data["median"].values.tolist() == pytest.approx([1e-3, 2e-3, 3e-3], rel=1e-7)  # kept as float32
    assert data["median"].attrs["units"] == "s"
    assert all(math.isnan(v) for v in data.error_before.values)
    assert data.attrs["finished"] == 1


def test_a_failing_cell_is_a_row_that_says_so(tmp_path: Path) -> None:
    journal, called = Journal(tmp_path / "j", {}), []
    run(journal, called, {1: RuntimeError("CUDA out of memory")})
    assert called == [0, 1, 2]
    rows = [row for r in journal.records for row in r["rows"]]
    assert rows[1]["note"] == "RuntimeError: CUDA out of memory"
    assert kernels.dataset(journal.records, {}).attrs["cells_failed"] == 1


def test_interrupted_then_resumed_calls_every_cell_once(tmp_path: Path) -> None:
    called: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run(Journal(tmp_path / "j", {}), called, {1: KeyboardInterrupt()})
    journal = Journal(tmp_path / "j", {}, resume=True)
    assert run(journal, called)["finished"] == 1
    assert called == [0, 1, 1, 2]
    assert len(journal.records) == 3


def test_out_of_budget_counts_what_is_left(tmp_path: Path) -> None:
    ticks = iter([0.0, 1.0, 1.0, *[50.0] * 20])
    attrs = run(Journal(tmp_path / "j", {}), [], budget=Budget(10.0, clock=lambda: next(ticks)))
    assert attrs == {"finished": 0, "cells_not_started": 2}
