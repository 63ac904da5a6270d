"""The decision of a scenario: its figure at any rates, over its sweep, with the same workload each time."""

from __future__ import annotations

from pathlib import Path

from sim.errors import UsageError
from sim.sweeps.decision import Decision, decision_on
from simctl.scenario_files.scenario import load_scenario

INTERVALS = ("rates_90.", "run_noise_90.")


def decision_of(path: Path, gpu: str, metric: str | None, goal: tuple[str, float] | None, allow_code: bool = False) -> Decision:
    """The decision of a scenario of `simulate` or `what-if`, asked of `gpu`. The goal defaults to the
    scenario's own, the metric to the goal's, else to the first one the scenario reports.

    A scenario that comes with simctl may be given by its name. With `allow_code` it may name a scheduler class of its own, which runs code.
    Raises UsageError naming what is missing.
    """
    scenario = load_scenario(path, {"gpu": gpu}, allow_code)
    makers = ("simulate", "what-if")
    if scenario.command not in makers:
        raise UsageError(f"{path.name}: a design needs a scenario of {' or '.join(makers)}, not of {scenario.command}")
    cells = {", ".join(f"{k} {v}" for k, v in cell.label.items()) or "as asked": cell.question() for cell in scenario.cells}
    own = next((each.goal for each in cells.values() if getattr(each, "goal", None)), None)
    if goal is None and own is not None and metric in (None, own[0]):
        goal = own
    limit = None
    if goal is not None:
        metric, limit = goal
    reported = [name for name in scenario.report if not name.startswith(INTERVALS)]
    name = metric or (reported[0] if reported else None)
    if name is None:
        raise UsageError(f"{path.name}: reports no figure; name one with --metric")
    if "map" in scenario.fixed:
        raise UsageError(f"{path.name}: a design needs a figure, not a map")
    try:
        return decision_on(scenario.question, name, limit, cells)
    except UsageError as error:
        raise UsageError(f"{path.name}: {error}") from None
