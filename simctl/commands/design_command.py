"""`simctl design`: which cells of an engine grid to measure next for one decision, and what they should buy."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from simctl.options import DURATION, GOAL, GPU
from simctl.text.layout import fill, table

if TYPE_CHECKING:
    from calibrate.design.greedy import Plan
    from simctl.scenario_decision import Decision

Array = NDArray[np.float64]
LEAST_CELLS = 8  # a calibration refuses fewer
SHOWN_COLUMNS = 3
ENOUGH = 0.05  # stop listing cells once the interval is within this share of what every cell together would leave


@click.command("design")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--hw", type=GPU, metavar="GPU", required=True, help="The GPU that would be measured.")
@click.option("--budget", type=DURATION, metavar="TIME", required=True, help="Seconds of measuring to spend (90, 120s, 2m).")
@click.option("--metric", help="The figure that decides. [default: the first one the scenario reports]")
@click.option("--goal", type=GOAL, metavar="METRIC<=X", help="The decision is where the figure meets this bound.")
@click.option("--posterior", type=click.Path(path_type=Path), help="What is known now. [default: the packaged posterior]")
@click.option("--from-datasheet", is_flag=True, help="Nothing is known now but the datasheet.")
@click.option("--cells-out", type=click.Path(path_type=Path), help="Write the cells here, for `simctl measure --cells`.")
@click.option("--sims", default=80, show_default=True, type=click.IntRange(30, 2000), help="Draws of the rates to simulate.")
@click.option("--seed", default=0, show_default=True, help="Seed of the draws.")
@click.option("--allow-code", is_flag=True, help="Let the scenario name a scheduler class of its own, as `simctl run` does.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(
    scenario: Path, hw: str, budget: float, metric: str | None, goal: tuple[str, float] | None, posterior: Path | None,
    from_datasheet: bool, cells_out: Path | None, sims: int, seed: int, allow_code: bool, as_json: bool,
) -> None:  # fmt: skip
    """Choose which cells of an engine grid to measure for a decision.

    SCENARIO is a file, or the name of one that comes with simctl. The cells chosen are those expected to narrow its figure most, with what
    they cost and the interval they should leave, beside a grid of the same cost. Nothing is measured.

    \b
    Examples:
      simctl design h100s_for_a_chat_load --hw h100 --budget 10s
      simctl design SCENARIO.yaml --hw l4 --budget 2m --cells-out cells.json
    """
    if posterior is not None and from_datasheet:
        raise UsageError("--posterior and --from-datasheet contradict each other")
    run(Asked(scenario, allow_code, hw, budget, metric, goal, posterior, from_datasheet, cells_out, sims, seed), as_json)


@dataclass(frozen=True)
class Asked:
    """What the command line says of a design."""

    scenario: Path
    allow_code: bool
    gpu: str
    budget_s: float
    metric: str | None
    goal: tuple[str, float] | None
    posterior: Path | None
    from_datasheet: bool
    cells_out: Path | None
    simulations: int
    seed: int


@dataclass(frozen=True)
class Designed:
    """A finished design. Figures are logarithms of the metric where it is positive everywhere: what the rates explain of it
    [draw, sweep cell], and what they do not (`rest`, same shape).
    """

    decision: Decision
    basis: str
    candidates: Any
    figures: Array
    rest: Array
    logs: bool
    r2: Array
    chosen: Plan
    grid: Plan
    everything: Plan
    budget_s: float
    simulations: int

    def interval(self, spread: Array) -> list[tuple[float, float]]:
        """Expected 5-95 % interval of the metric by sweep cell, when its standard deviation has come down to `spread`."""
        rest, mean = self.rest.var(axis=0), self.figures.mean(axis=0)
        known, start = (np.sqrt(np.maximum(s**2 - rest, 0.0)) for s in (spread, self.chosen.spread[0]))
        values = mean + (self.figures - mean) * (known / np.maximum(start, 1e-300)) + self.rest
        low, high = np.quantile(np.exp(values) if self.logs else values, [0.05, 0.95], axis=0)
        return list(zip(low.tolist(), high.tolist(), strict=True))


def design(asked: Asked) -> Designed:
    """Choose the cells. Raises UsageError or SimctlError for scenarios and GPUs there is nothing to design for."""
    from calibrate.design.greedy import Problem, choose, follow, linearised, thinned
    from calibrate.design.start import start_from
    from sim.specs.gpus import get_gpu
    from simctl.design_cells import candidates
    from simctl.scenario_decision import decision_of

    if asked.cells_out is not None and not asked.cells_out.parent.is_dir():
        raise UsageError(f"cannot write {asked.cells_out}: {asked.cells_out.parent} is not a folder")
    gpu = get_gpu(asked.gpu)
    decision = decision_of(asked.scenario, asked.gpu, asked.metric, asked.goal, asked.allow_code)
    start = start_from(gpu, decision.precision, asked.posterior, asked.from_datasheet, asked.seed)
    found = candidates(decision.model, gpu, decision.precision, start.point())
    left = asked.budget_s - found.checks_s
    if left <= 0 or (found.cost_s > left).all():
        raise UsageError(
            f"a budget of {asked.budget_s:g} s is too little: the run's own checks take {found.checks_s:.1f} s, "
            f"and the shortest cell {found.cost_s.min():.2f} s more"
        )
    simulated = np.linspace(0, len(start.rates.beta) - 1, asked.simulations).round().astype(int)
    raw = np.array([decision.at(start.rates.at(int(d))) for d in simulated])
    logs = bool((raw > 0).all())
    wanted, log_rates = np.log(raw) if logs else raw, start.log_rates()
    figures, missed = linearised(wanted, log_rates[simulated], log_rates)
    r2 = 1 - missed.var(axis=0) / np.maximum(wanted.var(axis=0), 1e-300)
    # every draw gets one of the residuals, the same for all sweep cells
    rest = missed[np.random.default_rng([asked.seed, 61]).integers(0, len(missed), len(figures))]
    problem = Problem(figures, rest.var(axis=0), start.log_times(found.cells), start.noise_var(found.cells), found.cost_s)
    order = range(len(found.asked))
    everything = follow(problem, order)
    chosen = _until_enough(choose(problem, left, _undecided(wanted, decision.limit, logs)), everything)
    same = follow(problem, thinned(found.cost_s, chosen.total_s))
    return Designed(decision, start.basis, found, figures, rest, logs, r2, chosen, same, everything, asked.budget_s, asked.simulations)


def run(asked: Asked, as_json: bool) -> None:
    """Design, print, and write the cells file where one is asked for."""
    from simctl.design_cells import write_cells

    result = design(asked)
    if as_json:
        click.echo(json.dumps(_plain(result), indent=1))
    else:
        _show(result)
    if asked.cells_out is not None:
        cells = [result.candidates.asked[i] for i in result.chosen.cells]
        write_cells(asked.cells_out, result.candidates.shape, cells, f"for {result.decision.metric}: {result.decision.question}")
        click.echo(f"wrote {asked.cells_out}", err=True)


def _until_enough(chosen: Plan, everything: Plan) -> Plan:
    """The plan cut where its spread is within ENOUGH of what all cells together would leave, on average over the figures that vary."""
    from calibrate.design.greedy import Plan

    start = chosen.spread[0]
    varies = start > 0
    reach = np.mean(everything.spread[-1][varies] / start[varies])
    for count in (0, *range(LEAST_CELLS, len(chosen.cells))):
        if np.mean(chosen.spread[count][varies] / start[varies]) <= reach + ENOUGH:
            return Plan(chosen.cells[:count], chosen.cost_s[:count], chosen.spread[: count + 1])
    return chosen


def _undecided(figures: Array, limit: float | None, logs: bool) -> Array | None:
    """Weights by sweep cell: with a limit, how open the question is there (p(1 - p) over the draws); else none."""
    if limit is None:
        return None
    if logs and limit <= 0:
        raise UsageError(f"--goal: the figure is positive at every draw; {limit:g} is never met")
    p = (figures <= (math.log(limit) if logs else limit)).mean(axis=0)
    if not (p * (1 - p)).any():
        verdict = ", ".join("met" if share == 1 else "not met" for share in p)
        raise UsageError(f"--goal is decided at every draw of the rates ({verdict}): no measurement would change the decision")
    return np.asarray(p * (1 - p))


def _chance_wrong(result: Designed, spread: Array) -> float | None:
    """Expected chance of judging the goal wrongly at the most open sweep cell, once the figures are known up to `spread`.

    Figures are taken as normal: with the posterior mean itself still random, P(wrong) = arctan(spread / known) / pi at a limit in the
    middle, and is averaged over the mean in general.
    """
    from scipy.special import ndtr

    if result.decision.limit is None:
        return None
    limit = math.log(result.decision.limit) if result.logs else result.decision.limit
    start, mean = result.chosen.spread[0], result.figures.mean(axis=0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    worst = 0.0
    for before, after, centre in zip(start, spread, mean, strict=True):
        if before > 0:
            known = math.sqrt(max(before**2 - after**2, 0.0))
            z = (limit - centre - known * nodes) / max(after, 1e-12)
            worst = max(worst, float((weights * np.minimum(ndtr(z), ndtr(-z))).sum() / weights.sum()))
    return worst


def _columns(result: Designed) -> list[int]:
    """Sweep cells worth a column: the widest ones."""
    order = np.argsort(-result.chosen.spread[0], kind="stable")[:SHOWN_COLUMNS]
    return sorted(int(i) for i in order)


def _show(result: Designed) -> None:
    def say(text: str) -> None:
        click.echo(fill(text, later="  "))

    d, found = result.decision, result.candidates
    click.echo(click.style(fill(d.question), bold=True))
    say(f"decision: {d.metric}" + (f" <= {d.limit:g}" if d.limit is not None else "") + f" of {d.model.name} on {d.gpu.name}")
    say(f"known now: {result.basis} (rates alone: what the formula itself misses, no cell removes)")
    say(
        f"cells: engine grid of {found.shape}, {len(found.asked)} possible, {found.cost_s.sum():.0f} s together; budget "
        f"{result.budget_s:g} s, of which {found.checks_s:.1f} s are the run's own checks"
    )
    r2 = float(result.r2.min())
    say(f"the rates explain {r2:.0%} of the figure's variance over {result.simulations} simulated draws (linear in their logarithms)")
    click.echo()
    shown = _columns(result)
    wrong = d.limit is not None
    header = ["measure", "spent", *(_value(d.cells[i]) if len(d.cells) > 1 else d.metric for i in shown)]
    at = f", by {_swept(d.cells[shown[0]])}" if len(d.cells) > 1 else ""

    def line(name: str, spent: float, spread: Array) -> list[str]:
        intervals = result.interval(spread)
        row = [name, f"{spent:.1f} s" if spent else "", *(f"{_short(intervals[i][0])}-{_short(intervals[i][1])}" for i in shown)]
        chance = _chance_wrong(result, spread)
        return row + ([f"{chance:.1%}"] if chance is not None else [])

    chosen = result.chosen
    rows = [line("(nothing yet)", 0.0, chosen.spread[0])]
    spent = found.checks_s
    for cell, cost, spread in zip(chosen.cells, chosen.cost_s, chosen.spread[1:], strict=True):
        spent += cost
        rows.append(line(str(found.cells.cell[cell]), spent, spread))
    for name, plan in (("coarse grid", result.grid), ("whole grid", result.everything)):
        rows.append(line(f"{name}, {len(plan.cells)} cells", found.checks_s + plan.total_s, plan.spread[-1]))
    click.echo(table((*header, *(["wrong"] if wrong else [])), rows))
    say(f"intervals of {d.metric}{at}: expected ones, 5-95 %, before anything is measured")
    if not chosen.cells:
        say(f"no cells: all {len(found.asked)} together would narrow the interval by less than {ENOUGH:.0%}")


def _swept(cell: str) -> str:
    """What is swept (`replicas`), of a sweep cell's label (`replicas 2`); of several, all of them."""
    return ", ".join(part.rsplit(" ", 1)[0] for part in cell.split(", "))


def _value(cell: str) -> str:
    return ", ".join(part.rsplit(" ", 1)[-1] for part in cell.split(", "))


def _short(value: float) -> str:
    """Four digits, as a whole number from 1,000 up."""
    return f"{float(f'{value:.4g}'):.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"


def _plain(result: Designed) -> dict[str, Any]:
    d, found = result.decision, result.candidates

    def after(plan: Plan) -> dict[str, Any]:
        return {
            "cells": [str(found.cells.cell[i]) for i in plan.cells],
            "cost_s": list(plan.cost_s),
            "intervals": [result.interval(spread) for spread in plan.spread],
            "chance_wrong": [_chance_wrong(result, spread) for spread in plan.spread],
        }

    return {
        "question": d.question,
        "metric": d.metric,
        "limit": d.limit,
        "sweep": list(d.cells),
        "gpu": d.gpu.name,
        "measure_model": found.shape,
        "known_now": result.basis,
        "linear_r2": result.r2.tolist(),
        "budget_s": result.budget_s,
        "checks_s": found.checks_s,
        "chosen": after(result.chosen),
        "coarse_grid_of_the_same_cost": after(result.grid),
        "whole_grid": after(result.everything),
    }
