"""The engine-grid suite as a job, and what a killed one left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hw.artifact import write
from hw.cells import Cell, engine_grid, weight_axis
from hw.journal import Journal, read_journal
from hw.suites import engine_grid as suite
from hw.suites import in_process
from hw.suites.engine_grid_table import dataset
from sim.errors import UsageError

if TYPE_CHECKING:
    import xarray as xr

TABLES = {"cell": "", "iteration": ".iterations"}


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    scale = in_process.SCALE[job.device]

    def plan(engine: Any, attrs: Mapping[str, Any]) -> Sequence[Cell]:
        journal.add("attrs", attrs=attrs)
        limits = in_process.limits(job, attrs["max_model_len"])
        if job.suite == "weight-axis":
            return weight_axis(fits=engine.fits, **limits)
        if job.cells:
            return in_process.asked(job, engine.fits, limits)
        return engine_grid(np.random.default_rng(job.seed), fits=engine.fits, scale=scale, **limits)

    return in_process.run(job, out, journal, facts, in_process.Suite(
        called="cells",
        plan=plan,
        measure=lambda engine, cells, budget, rng: suite.measure(engine, cells, journal, budget, rng, job.stem, scale),
        dataset=lambda attrs: _of_done(journal.records, attrs, job.suite),
        tables=TABLES,
    ))  # fmt: skip


def recover(journal_path: Path) -> list[Path]:
    """Write the files of a run that was killed, from its journal, marked finished = 0. Raises UsageError if it holds no cells."""
    header, records = read_journal(journal_path)
    attrs = next((r["attrs"] for r in records if r["key"] == "attrs"), {})
    data = _of_done(records, attrs | {"finished": 0}, header["suite"])
    if data is None:
        raise UsageError(f"{journal_path}: no finished cell in it")
    return write(data, journal_path.with_name(journal_path.name.removesuffix(".journal.jsonl") + ".nc"), TABLES)


def _of_done(records: Sequence[Mapping[str, Any]], attrs: dict[str, Any], name: str) -> xr.Dataset | None:
    """The cells that a journal holds as a Dataset, None where it holds none."""
    done = [record for record in records if "rows" in record]
    return dataset(done, attrs, name) if done else None
