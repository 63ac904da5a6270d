"""The duty suite as a job: sequences of iterations and readings of the card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hw.journal import Journal
from hw.suites import duty as suite
from hw.suites import in_process

TABLES = {"sequence": "", "iteration": ".iterations", "reading": ".readings"}


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    return in_process.run(job, out, journal, facts, in_process.Suite(
        called="sequences",
        plan=lambda engine, attrs: suite.sequences(in_process.SCALE[job.device]),
        measure=lambda engine, wanted, budget, rng: suite.measure(engine, wanted, journal, budget, rng, job.stem),
        dataset=lambda attrs: suite.dataset(journal.records, attrs) if journal.records else None,
        tables=TABLES,
    ))  # fmt: skip
