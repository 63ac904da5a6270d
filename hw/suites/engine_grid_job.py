"""The engine-grid suite as a job: floors, engine, grid, files."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hw import provenance
from hw.artifact import write
from hw.cells import engine_grid, weight_axis
from hw.journal import Journal, read_journal
from hw.pace import Budget
from hw.signals import terminate_as_interrupt
from hw.suites import engine_grid as suite
from hw.suites import in_process
from hw.suites.engine_grid_table import dataset
from sim.errors import UsageError


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    attrs = in_process.attributes(job, facts)
    engine = None
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine = in_process.start(job, Path(folder))
            attrs |= engine.describe()
            journal.add("attrs", attrs=attrs)
            limits = in_process.limits(job, attrs["max_model_len"])
            scale = in_process.SCALE[job.device]
            if job.suite == "weight-axis":
                cells = weight_axis(fits=engine.fits, **limits)
            elif job.cells:
                cells = in_process.asked(job, engine.fits, limits)
            else:
                cells = engine_grid(np.random.default_rng(job.seed), fits=engine.fits, scale=scale, **limits)
            print(f"{job.stem}: engine up in {engine.load_s:.0f} s, {len(cells)} cells", file=sys.stderr, flush=True)
            budget = Budget(job.budget_s)
            with terminate_as_interrupt():
                attrs |= suite.measure(engine, cells, journal, budget, np.random.default_rng(job.seed + 1), job.stem, scale)
            attrs["measuring_s"] = round(budget.spent_s, 1)
        if job.device == "cuda":
            attrs |= {f"after_{k}": v for k, v in provenance.query_gpus()[0].items() if k.startswith(("clock_sm", "temp", "power_w"))}
    finally:
        paths = []
        cells_done = [r for r in journal.records if "rows" in r]
        if cells_done:
            data = dataset(cells_done, attrs, job.suite)
            paths = write(data, out / f"{job.stem}.nc", {"cell": "", "iteration": ".iterations"})
            if attrs["finished"]:
                journal.path.unlink(missing_ok=True)
        if engine is not None:
            engine.close()
    return paths


def recover(journal_path: Path) -> list[Path]:
    """Write the files of a run that was killed, from its journal, marked finished = 0. Raises UsageError if it holds no cells."""
    header, records = read_journal(journal_path)
    attrs = next((r["attrs"] for r in records if r["key"] == "attrs"), {})
    cells_done = [r for r in records if "rows" in r]
    if not cells_done:
        raise UsageError(f"{journal_path}: no finished cell in it")
    target = journal_path.with_name(journal_path.name.removesuffix(".journal.jsonl") + ".nc")
    return write(dataset(cells_done, attrs | {"finished": 0}, header["suite"]), target, {"cell": "", "iteration": ".iterations"})
