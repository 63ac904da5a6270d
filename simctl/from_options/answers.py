"""Answers of questions as plain data, and progress meanwhile."""

from __future__ import annotations

import json
from collections.abc import Sequence
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


def plain_answer(question: Any, paired: Sequence[str] = ()) -> dict[str, Any]:
    """Answer as --json prints it; of a simulation also `pairs`, of the figures `paired` that it has (sim.results.paired)."""
    from sim.results.paired import pairs_of
    from sim.results.run_files import summary_json

    if isinstance(question, Simulate):
        run = simulated(question)
        plain: dict[str, Any] = json.loads(summary_json(summary_of(run, question.rates.seed)))
        return plain | ({"pairs": {name: pairs_of(run, name) for name in paired if name in run.summary}} if paired else {})
    found: dict[str, Any] = question.answer().to_dict()
    return found
