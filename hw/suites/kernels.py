"""kernels: every kernel of this project beside the strongest baselines present, kept cell by cell.

Protocol (kernels/1). Order, timing (graph replay over input sets beyond the cache, interleaved, medians) and float64 gates before and
after each timing are those of `kernels.bench`. Its cells are journalled, so that a cut run goes on where it ended.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from hw.artifact import table
from hw.journal import Journal, attempt
from hw.pace import Budget
from sim.errors import SimctlError

PROTOCOL = "kernels/1"
DEFAULT_BUDGET_S, RESERVE_S = 420.0, 5.0  # a suite stays inside eight minutes

Rows = list[dict[str, object]]
Work = Iterable[tuple[str, Callable[[], Rows]]]


def run(job: Any, journal: Journal, attrs: dict[str, Any]) -> None:
    """Roofline rows, then the cells. Needs a CUDA device and Triton, no engine and no model."""
    import torch

    from kernels import bench, roofline

    def release() -> None:
        gc.collect()
        torch.cuda.empty_cache()

    torch.manual_seed(job.seed)
    budget = Budget(job.budget_s or DEFAULT_BUDGET_S)
    limits = bench.roofline_rows(roofline.measure())
    journal.add("roofline", rows=limits)
    log = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    attrs |= measure(bench.work(limits, deadline=time.monotonic() + budget.left_s, log=log), journal, budget, job.stem, release)
    misses = bench.failed([row for r in journal.records for row in r["rows"] if "note" in row])
    attrs |= {"measuring_s": round(budget.spent_s, 1), "gates_failed": len(misses), "gate_passed": int(not misses)}
    if misses:
        raise SimctlError(f"kernels: {len(misses)} missed a gate: {', '.join(sorted({str(r['op']) for r in misses}))}")


def measure(work: Work, journal: Journal, budget: Budget, name: str, release: Callable[[], None]) -> dict[str, Any]:
    """Run the cells not yet in the journal until done or out of budget. Returns attributes.

    `work` yields (group, call giving rows) in a fixed order; `release` frees device memory between cells. A cell that fails is
    recorded as a row that says so; the sweep goes on.
    """
    left = 0
    for index, (group, call) in enumerate(work):
        key = f"cell {index} {group}"
        if key in journal:
            continue
        if budget.over(RESERVE_S):
            left += 1
            continue
        rows, status, error = attempt(call)
        journal.add(key, rows=rows if status == "ok" else [{"suite": group, "op": group, "variant": "failed", "note": error}])
        del call  # the last one of a group holds its pools
        release()
        print(f"{name}: cell {index + 1}, {budget.spent_s:.0f} s", file=sys.stderr, flush=True)
    return {"finished": int(not left), "cells_not_started": left}


def dataset(records: list[dict[str, Any]], attrs: dict[str, Any]) -> Any:
    """The journal as an xarray Dataset along `cell`, in the columns of `kernels.results`."""
    import xarray as xr

    from kernels import results

    rows = [row for r in records for row in r["rows"]]
    described = {name: (meaning, units) for name, (units, meaning) in results.COLUMNS.items()}
    failed = sum(r.get("variant") == "failed" for r in rows)
    return xr.Dataset(table("cell", rows, described), attrs={"protocol": PROTOCOL, "cells_failed": failed, **attrs})
