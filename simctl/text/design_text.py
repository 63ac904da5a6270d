"""Tables of `simctl design`."""

from __future__ import annotations

from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from calibrate.design.designed import ENOUGH, Designed
from calibrate.design.greedy import MeasurementPlan
from simctl.text.layout import fill, table

MOST_COLUMNS = 3


def show(result: Designed) -> None:
    """The decision, the cells in the order to measure them, and the interval expected after each."""

    def say(text: str) -> None:
        click.echo(fill(text, later="  "))

    d, found = result.decision, result.candidates
    click.echo(click.style(fill(d.question), bold=True))
    say(f"decision: {d.metric}" + (f" <= {d.limit:g}" if d.limit is not None else "") + f" of {d.model.name} on {d.gpu.name}")
    say(f"known now: {result.basis} (rates alone: what the formula itself misses, no cell removes)")
    say(
        f"cells: engine grid of {found.shape}, {len(found.cost_s)} possible, {found.cost_s.sum():.0f} s together; budget "
        f"{result.budget_s:g} s, of which {found.checks_s:.1f} s are the run's own checks"
    )
    r2 = float(result.r2.min())
    say(f"the rates explain {r2:.0%} of the figure's variance over {result.simulations} simulated draws (linear in their logarithms)")
    click.echo()
    columns = _columns(result)
    wrong = d.limit is not None
    header = ["measure", "spent", *(_value(d.cells[i]) if len(d.cells) > 1 else d.metric for i in columns)]
    at = f", by {_swept(d.cells[columns[0]])}" if len(d.cells) > 1 else ""

    def line(name: str, spent: float, sd: NDArray[np.float64]) -> list[str]:
        intervals = result.interval(sd)
        row = [name, f"{spent:.1f} s" if spent else "", *(f"{_short(intervals[i][0])}-{_short(intervals[i][1])}" for i in columns)]
        chance = result.chance_wrong(sd)
        return row + ([f"{chance:.1%}"] if chance is not None else [])

    chosen = result.chosen
    rows = [line("(nothing yet)", 0.0, chosen.sd[0])]
    spent = found.checks_s
    for cell, cost, sd in zip(chosen.cells, chosen.cost_s, chosen.sd[1:], strict=True):
        spent += cost
        rows.append(line(str(found.cells.cell[cell]), spent, sd))
    for name, plan in (("coarse grid", result.grid), ("whole grid", result.everything)):
        rows.append(line(f"{name}, {len(plan.cells)} cells", found.checks_s + plan.total_s, plan.sd[-1]))
    click.echo(table((*header, *(["wrong"] if wrong else [])), rows))
    say(f"intervals of {d.metric}{at}: expected ones, 5-95 %, before anything is measured")
    if result.decided and result.met is not None:
        verdicts = {True: "met", False: "not met"}
        said = ", ".join(f"{_value(cell)}: {verdicts[bool(share)]}" for cell, share in zip(d.cells, result.met, strict=True))
        say(f"no measurement would change the decision: at every draw of the rates the goal is decided ({said})")
    elif not chosen.cells:
        say(f"no cells: all {len(found.cost_s)} together would narrow the interval by less than {ENOUGH:.0%}")


def _swept(cell: str) -> str:
    """Swept options (`replicas`) of a sweep cell's label (`replicas 2`); of several, all of them."""
    return ", ".join(part.rsplit(" ", 1)[0] for part in cell.split(", "))


def _value(cell: str) -> str:
    return ", ".join(part.rsplit(" ", 1)[-1] for part in cell.split(", "))


def _short(value: float) -> str:
    """Four digits, as a whole number from 1,000 up."""
    return f"{float(f'{value:.4g}'):.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"


def _columns(result: Designed) -> list[int]:
    """Sweep cells worth a column: the widest ones."""
    order = np.argsort(-result.chosen.sd[0], kind="stable")[:MOST_COLUMNS]
    return sorted(int(i) for i in order)


def as_dict(result: Designed) -> dict[str, Any]:
    """Design as --json prints it."""
    d, found = result.decision, result.candidates

    def after(plan: MeasurementPlan) -> dict[str, Any]:
        return {
            "cells": [str(found.cells.cell[i]) for i in plan.cells],
            "cost_s": list(plan.cost_s),
            "intervals": [result.interval(sd) for sd in plan.sd],
            "chance_wrong": [result.chance_wrong(sd) for sd in plan.sd],
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
        "simulations": result.simulations,
        "goal_met_share": None if result.met is None else result.met.tolist(),
        "budget_s": result.budget_s,
        "checks_s": found.checks_s,
        "chosen": after(result.chosen),
        "coarse_grid_of_the_same_cost": after(result.grid),
        "whole_grid": after(result.everything),
    }
