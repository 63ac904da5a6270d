"""Answers of questions as plain data, and progress meanwhile."""

from __future__ import annotations

import json
from typing import Any

from sim import Run, Simulate
from simctl import __version__
from simctl.text.progress import progress


def simulated(question: Simulate, **more: Any) -> Run:
    """The run, with a bar where it takes long."""
    with progress("simulating") as report:
        return question.answer(report, **more)


def summary_of(run: Run, seed: int) -> dict[str, Any]:
    """Content of summary.json."""
    return run.to_dict(simctl_version=__version__, seed=seed)


def plain_answer(question: Any) -> dict[str, Any]:
    """Answer as --json prints it."""
    from sim.results.run_files import summary_json

    if isinstance(question, Simulate):
        plain: dict[str, Any] = json.loads(summary_json(summary_of(simulated(question), question.rates.seed)))
        return plain
    found: dict[str, Any] = question.answer().to_dict()
    return found
