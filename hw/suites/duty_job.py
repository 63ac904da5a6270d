"""The duty suite as a job: floors, engine, the sequences, files."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hw.artifact import write
from hw.journal import Journal
from hw.pace import Budget
from hw.signals import terminate_as_interrupt
from hw.suites import duty as suite
from hw.suites import in_process


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    attrs = in_process.attributes(job, facts)
    engine, paths = None, []
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine = in_process.start(job, Path(folder))
            attrs |= engine.describe()
            wanted = suite.sequences(in_process.SCALE[job.device])
            print(f"{job.stem}: engine up in {engine.load_s:.0f} s, {len(wanted)} sequences", file=sys.stderr, flush=True)
            budget = Budget(job.budget_s)
            with terminate_as_interrupt():
                attrs |= suite.measure(engine, wanted, journal, budget, np.random.default_rng(job.seed + 1), job.stem)
            attrs["measuring_s"] = round(budget.spent_s, 1)
    finally:
        if journal.records:
            dims = {"sequence": "", "iteration": ".iterations", "reading": ".readings"}
            data = suite.dataset(journal.records, attrs)
            paths = write(data, out / f"{job.stem}.nc", {dim: end for dim, end in dims.items() if dim in data.sizes})
            if attrs["finished"]:
                journal.path.unlink(missing_ok=True)
        if engine is not None:
            engine.close()
    return paths
