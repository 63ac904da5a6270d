"""The served suite against a running server, by URL: the plan, files. What that server is, only its answers tell."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from hw.artifact import write
from hw.journal import Journal
from hw.pace import Budget
from hw.serve.client import Target, complete
from hw.serve.identify import describe
from hw.serve.load import Prompts
from hw.suites import served as suite
from hw.suites.served_job import chosen_of, work_of
from sim.errors import SimctlError


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    """As the served suite. Raises SimctlError with the server's words when it does not complete one short prompt."""
    target = Target(job.url, job.model)
    experiments = work_of("plan", target, job.vocab_size, job)
    chosen = chosen_of({e.name for e in experiments}, job)
    attrs: dict[str, Any] = facts | asyncio.run(describe(target)) | {"path": "served", "model": job.model, "seed": job.seed}
    attrs |= {"vocab_size": job.vocab_size, "plan_size": job.device, "finished": 0}
    if error := asyncio.run(complete(target, Prompts(job.vocab_size, job.seed).draw(0, 16), 4)).error:
        raise SimctlError(f"{job.url}: {error}")
    try:
        work = [e for e in experiments if e.name in chosen]
        attrs |= suite.measure(work, target, job.vocab_size, journal, Budget(job.budget_s), job.stem, local=False)
    finally:
        paths = []
        if journal.records:
            paths = write(suite.dataset(journal.records, attrs), out / f"{job.stem}.nc", {"experiment": "", "request": ".requests"})
            if attrs["finished"]:
                journal.path.unlink(missing_ok=True)
    return paths
