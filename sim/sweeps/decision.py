"""A decision: one figure of several questions at any rates, with the same workload each time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.closed_form.what_if import WhatIf
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import RateDraws, Rates
from sim.errors import SimctlError, UsageError
from sim.study.deployment import Deployment
from sim.study.simulate import run_study
from sim.study.simulate_question import Simulate
from sim.sweeps.figures import flatten

Figure = Callable[[Rates], float]


@dataclass(frozen=True)
class Decision:
    """`metric` of every cell of a sweep; with a `limit`, the question is from which cell on the metric is within it.

    `at` maps rates (floats) to the metric's values, one per cell of the sweep.
    """

    question: str
    metric: str
    limit: float | None
    cells: tuple[str, ...]
    model: Any
    gpu: Any
    precision: Any
    tp: int
    at: Callable[[Rates], list[float]]


def decision_on(question: str, metric: str, limit: float | None, cells: Mapping[str, Simulate | WhatIf]) -> Decision:
    """The decision by `metric` among questions by label. UsageError where they are not of one model on one GPU."""
    parts = [_simulated(each, metric) if isinstance(each, Simulate) else _laid_out(each, metric) for each in cells.values()]
    owners = {(d.model, d.gpu.name, d.precision, d.tp) for _, d in parts}
    if len(owners) > 1:
        raise UsageError("a design is for one model on one GPU; the sweep changes them")
    d = parts[0][1]
    at = lambda rates: [figure(rates) for figure, _ in parts]  # noqa: E731
    return Decision(question, metric, limit, tuple(cells), d.model, d.gpu, d.precision, d.tp, at)


def _simulated(question: Simulate, metric: str) -> tuple[Figure, Deployment]:
    study = question.study()
    workload = replace(study.workload, redraw=None)

    def at(rates: Rates) -> float:
        held = RateDraws(rates, rates, study.rates.sources, Provenance(Origin.IN_PROCESS, "a design"))
        held, _ = replace(question.rates, known=held).of(study.deployment, 1)
        run = run_study(replace(study, workload=workload, rates=held), draws=0, keep_iterations=False)
        if metric not in run.summary:
            raise SimctlError(f"simulate has no figure {metric!r}; it has {', '.join(sorted(run.summary))}")
        return float(run.summary[metric])

    return at, study.deployment


def _laid_out(question: WhatIf, metric: str) -> tuple[Figure, Deployment]:
    def at(rates: Rates) -> float:
        one = Rates(**{name: np.full(1, getattr(rates, name)) for name in rates.names()})
        flat = flatten(question.answer(RateDraws(rates, one)).to_dict())
        if not isinstance(flat.get(metric), int | float):
            numbers = sorted(name for name, value in flat.items() if isinstance(value, int | float) and not isinstance(value, bool))
            raise UsageError(f"what-if has no figure {metric!r}; it has {', '.join(numbers)}")
        return float(flat[metric])

    return at, question.deployment
