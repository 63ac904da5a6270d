"""The decision of a scenario: its figure at any rates, over its sweep, with the same workload each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from simctl.goal import read_goal

INTERVALS = ("rates_90.", "run_noise_90.")


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
    at: Callable[[Any], list[float]]


def decision_of(path: Path, gpu: str, metric: str | None, goal: str | None) -> Decision:
    """The decision of a scenario of `simulate` or `what-if`, asked of `gpu`. The metric defaults to the first one the scenario reports.

    A scenario that comes with simctl may be given by its name. Raises UsageError naming what is missing.
    """
    from simctl.scenario import load_scenario

    scenario = load_scenario(path, {"gpu": gpu})
    makers = {"simulate": _simulated, "what-if": _laid_out}
    if scenario.command not in makers:
        raise UsageError(f"{path.name}: a design needs a scenario of {' or '.join(makers)}, not of {scenario.command}")
    limit = None
    if goal is not None:
        metric, limit = read_goal(goal)
    reported = [name for name in scenario.report if not name.startswith(INTERVALS)]
    name = metric or (reported[0] if reported else None)
    if name is None:
        raise UsageError(f"{path.name}: reports no figure; name one with --metric")
    parts = [makers[scenario.command](run.arguments, name) for run in scenario.runs]
    owner = parts[0][1]
    if any(part[1] != owner for part in parts):
        raise UsageError(f"{path.name}: a design is for one model on one GPU; the sweep changes them")
    labels = tuple(", ".join(f"{k} {v}" for k, v in run.cell.items()) or "as asked" for run in scenario.runs)
    return Decision(scenario.question, name, limit, labels, *owner, at=lambda rates: [part[0](rates) for part in parts])


def _simulated(arguments: tuple[str, ...], metric: str) -> tuple[Callable[[Any], float], tuple[Any, ...]]:
    from dataclasses import replace

    from sim.errors import SimctlError
    from sim.rates import RateDraws
    from sim.serve import run_study
    from sim.served import IN_PROCESS, as_served
    from simctl.simulate import command
    from simctl.study import study_of

    context = command.make_context("simulate", list(arguments))
    study = study_of(context, context.params)

    def at(rates: Any) -> float:
        held = RateDraws(rates, rates, study.rates.basis, f"{IN_PROCESS} a design")
        if context.params["served_path"]:
            held, _ = as_served(held)
        result = run_study(replace(study, rates=held, redraw=None), draws=0, keep_iterations=False)
        if metric not in result.summary:
            raise SimctlError(f"simulate has no figure {metric!r}; it has {', '.join(sorted(result.summary))}")
        return float(result.summary[metric])

    return at, (study.model, study.gpu, study.precision, study.tp)


def _laid_out(arguments: tuple[str, ...], metric: str) -> tuple[Callable[[Any], float], tuple[Any, ...]]:
    from dataclasses import fields

    import numpy as np

    from sim.rates import UNITS, RateDraws, Rates
    from sim.whatif import answer
    from simctl.run import flatten
    from simctl.what_if import as_dict, command, question_of

    context = command.make_context("what-if", list(arguments))
    question, _ = question_of(context.params)

    def at(rates: Any) -> float:
        one = Rates(**{f.name: np.full(1, getattr(rates, f.name)) for f in fields(Rates)})
        flat = flatten(as_dict(answer(question, RateDraws(rates, one, dict.fromkeys(UNITS, "design"), "design")), context.params))
        if not isinstance(flat.get(metric), int | float):
            numbers = sorted(name for name, value in flat.items() if isinstance(value, int | float) and not isinstance(value, bool))
            raise UsageError(f"what-if has no figure {metric!r}; it has {', '.join(numbers)}")
        return float(flat[metric])

    return at, (question.model, question.gpu, question.precision, question.tp)
