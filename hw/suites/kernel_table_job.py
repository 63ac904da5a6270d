"""The kernels suite as a job: floors, cells, gates, files. Needs a CUDA device and Triton, no engine and no model."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path
from typing import Any

from hw.artifact import write
from hw.journal import Journal
from hw.pace import Budget
from hw.suites import kernel_table as suite
from sim.errors import UsageError

DEFAULT_BUDGET_S = 420.0  # a suite stays inside eight minutes


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    if job.device != "cuda":
        raise UsageError("suite kernels needs a CUDA device")
    import torch

    from kernels import bench, floors, results

    def release() -> None:
        gc.collect()
        torch.cuda.empty_cache()

    torch.manual_seed(job.seed)
    budget = Budget(job.budget_s or DEFAULT_BUDGET_S)
    floor_rows = bench.floor_rows(floors.measure())
    args = argparse.Namespace(
        suites=list(bench.SUITES), repeats=15, quick=False, host_step=False, deadline=time.monotonic() + budget.left_s
    )
    attrs: dict[str, Any] = facts | {"seed": job.seed, "finished": 0}
    try:
        work = bench.work(args, floor_rows, lambda text: print(text, file=sys.stderr, flush=True))
        attrs |= suite.measure(work, journal, budget, job.stem, release)
        attrs["measuring_s"] = round(budget.spent_s, 1)
    finally:
        paths = []
        if journal.records:
            rows = floor_rows + [row for r in journal.records for row in r["rows"]]
            misses = bench.failed([r for r in rows if "note" in r])
            attrs |= {"gates_failed": len(misses), "gate_passed": int(not misses)}
            paths = write(suite.dataset(rows, results.COLUMNS, attrs), out / f"{job.stem}.nc", {"cell": ""})
            if attrs["finished"]:
                journal.path.unlink(missing_ok=True)
    return paths
