"""The profile suite as a job: the kernels of every cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hw.cells import Cell
from hw.engines.kernel_trace import recorder
from hw.journal import Journal
from hw.suites import in_process
from hw.suites import profile as suite
from hw.suites.profile_table import dataset


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    record = recorder(job.device)

    def plan(engine: Any, attrs: Mapping[str, Any]) -> Sequence[Cell]:
        bounds = in_process.limits(job, attrs["max_model_len"])
        if job.cells:
            return in_process.asked(job, engine.fits, bounds)
        return suite.cells_of(np.random.default_rng(job.seed), fits=engine.fits, scale=in_process.SCALE[job.device], **bounds)

    return in_process.run(job, out, journal, facts, in_process.Suite(
        called="cells",
        plan=plan,
        measure=lambda engine, cells, budget, rng: suite.measure(engine, cells, journal, budget, rng, job.stem, record),
        dataset=lambda attrs: dataset(journal.records, attrs) if journal.records else None,
        tables={"cell": "", "kernel": ".kernels"},
    ))  # fmt: skip
