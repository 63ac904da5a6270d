"""The decision of a scenario: its figure at any rates, over its sweep, with the same workload each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import SimctlError, UsageError

if TYPE_CHECKING:
    from sim import Deployment, Rates

INTERVALS = ("rates_90.", "run_noise_90.")
Figure = Callable[["Rates"], float]


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


def decision_of(path: Path, gpu: str, metric: str | None, goal: tuple[str, float] | None, allow_code: bool = False) -> Decision:
    """The decision of a scenario of `simulate` or `what-if`, asked of `gpu`. The metric defaults to the first one the scenario reports.

    A scenario that comes with simctl may be given by its name. With `allow_code` it may name a scheduler class of its own, which runs code.
    Raises UsageError naming what is missing.
    """
    from simctl.scenario import load_scenario

    scenario = load_scenario(path, {"gpu": gpu}, allow_code)
    makers = {"simulate": _simulated, "what-if": _laid_out}
    if scenario.command not in makers:
        raise UsageError(f"{path.name}: a design needs a scenario of {' or '.join(makers)}, not of {scenario.command}")
    limit = None
    if goal is not None:
        metric, limit = goal
    reported = [name for name in scenario.report if not name.startswith(INTERVALS)]
    name = metric or (reported[0] if reported else None)
    if name is None:
        raise UsageError(f"{path.name}: reports no figure; name one with --metric")
    parts = [makers[scenario.command](cell.options(), name) for cell in scenario.cells]
    owners = {(d.model, d.gpu.name, d.precision, d.tp) for _, d in parts}
    if len(owners) > 1:
        raise UsageError(f"{path.name}: a design is for one model on one GPU; the sweep changes them")
    d = parts[0][1]
    labels = tuple(", ".join(f"{k} {v}" for k, v in cell.label.items()) or "as asked" for cell in scenario.cells)
    at = lambda rates: [figure(rates) for figure, _ in parts]  # noqa: E731
    return Decision(scenario.question, name, limit, labels, d.model, d.gpu, d.precision, d.tp, at)


def _simulated(options: dict[str, Any], metric: str) -> tuple[Figure, Deployment]:
    from dataclasses import replace

    from sim import RateDraws, simulate
    from sim.rates.provenance import Origin, Provenance
    from sim.rates.serving import as_served
    from simctl.commands.simulate import study_of

    study = study_of(options)
    workload = replace(study.workload, redraw=None)

    def at(rates: Rates) -> float:
        held = RateDraws(rates, rates, study.rates.sources, Provenance(Origin.IN_PROCESS, "a design"))
        if options["served"]:
            held, _ = as_served(held)
        run = simulate(study.deployment, workload, held, host=study.host, goodput=study.goodput, draws=0, keep_iterations=False)
        if metric not in run.summary:
            raise SimctlError(f"simulate has no figure {metric!r}; it has {', '.join(sorted(run.summary))}")
        return float(run.summary[metric])

    return at, study.deployment


def _laid_out(options: dict[str, Any], metric: str) -> tuple[Figure, Deployment]:
    import numpy as np

    from sim import RateDraws, Rates
    from simctl.commands.run import flatten
    from simctl.commands.what_if import answer, as_dict
    from simctl.options import deployment_of

    def at(rates: Rates) -> float:
        one = Rates(**{name: np.full(1, getattr(rates, name)) for name in rates.names()})
        flat = flatten(as_dict(answer(options, RateDraws(rates, one)), options))
        if not isinstance(flat.get(metric), int | float):
            numbers = sorted(name for name, value in flat.items() if isinstance(value, int | float) and not isinstance(value, bool))
            raise UsageError(f"what-if has no figure {metric!r}; it has {', '.join(numbers)}")
        return float(flat[metric])

    return at, deployment_of(options)
