"""The profile suite as a job: floors, engine, the kernels of every cell, files."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hw.artifact import write
from hw.engines.kernel_trace import recorder
from hw.journal import Journal
from hw.pace import Budget
from hw.signals import terminate_as_interrupt
from hw.suites import in_process
from hw.suites import profile as suite
from hw.suites.profile_table import dataset


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    attrs = in_process.attributes(job, facts)
    record = recorder(job.device)
    engine, paths = None, []
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine = in_process.start(job, Path(folder))
            attrs |= engine.describe()
            bounds = in_process.limits(job, attrs["max_model_len"])
            if job.cells:
                cells = in_process.asked(job, engine.fits, bounds)
            else:
                scale = in_process.SCALE[job.device]
                cells = suite.cells_of(np.random.default_rng(job.seed), fits=engine.fits, scale=scale, **bounds)
            print(f"{job.stem}: engine up in {engine.load_s:.0f} s, {len(cells)} cells", file=sys.stderr, flush=True)
            budget = Budget(job.budget_s)
            with terminate_as_interrupt():
                attrs |= suite.measure(engine, cells, journal, budget, np.random.default_rng(job.seed + 1), job.stem, record)
            attrs["measuring_s"] = round(budget.spent_s, 1)
    finally:
        if journal.records:
            paths = write(dataset(journal.records, attrs), out / f"{job.stem}.nc", {"cell": "", "kernel": ".kernels"})
            if attrs["finished"]:
                journal.path.unlink(missing_ok=True)
        if engine is not None:
            engine.close()
    return paths
