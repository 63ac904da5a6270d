"""The products suite as a job: floors, gate, passes, kernels, files. Needs torch, no engine."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

from hw import provenance
from hw.artifact import write
from hw.clocks import clocks, summary
from hw.engines.shapes import SHAPES, shape
from hw.journal import Journal
from hw.pace import Budget
from hw.products_file import models_of, read_products
from hw.suites import floor
from hw.suites import products as suite
from hw.suites.engine_grid import undisturbed
from sim.errors import UsageError


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    if floor.library() != "torch":
        raise UsageError("suite products needs torch")
    from hw.suites import products_device

    if job.products:
        uses = read_products(Path(job.products))
        models = tuple(models_of(uses.values()))
    else:
        models = job.models or tuple(name for name, config in SHAPES.items() if config["torch_dtype"] == "bfloat16")
        uses = suite.products_of({name: shape(name) for name in models})
    points = suite.points_of(uses, job.device)
    if job.device == "cuda":
        print(f"{job.stem}: {suite.described(points)}", file=sys.stderr, flush=True)
    attrs: dict[str, Any] = facts | floor.headline(floor.measure(job.device, quick=True)) | products_device.described(job.device)
    dtypes = sorted({product.dtype for product in uses})
    attrs |= {"model": ", ".join(models), "weight_dtype": ", ".join(dtypes), "weights": "random", "tensor_parallel_size": 1}
    attrs |= {"path": "F.linear", "seed": job.seed, "finished": 0}
    calls = None
    try:
        calls = products_device.Calls(uses, suite.MOST_ROWS[job.device], job.device, job.seed)
        attrs["held_s_per_call"] = calls.held_s
        budget = Budget(job.budget_s)
        with undisturbed(), clocks() as readings:
            attrs |= suite.measure(calls, points, journal, budget, job.seed, job.stem, suite.RESERVE_S[job.device])
        attrs |= summary(readings)
        attrs["measuring_s"] = round(budget.spent_s, 1)
        attrs |= provenance.after(job.device)
    finally:
        paths = []
        if journal.records:
            paths = write(suite.dataset(journal.records, uses, points, attrs), out / f"{job.stem}.nc", {"point": ""})
            if attrs["finished"]:
                journal.path.unlink(missing_ok=True)
        del calls
        gc.collect()
    return paths
