"""What `simctl run` prints of a sweep: a table over its cells, and the first that meets its goal."""

from __future__ import annotations

from typing import Any

import click

from sim.errors import UsageError
from sim.sweeps.figures import flatten, interval_of, is_void
from simctl.text.layout import folded


def print_table(labels: list[dict[str, str]], answers: list[dict[str, Any]], report: tuple[str, ...]) -> None:
    """A row a cell, a column a figure. UsageError for a figure that an answer has not."""
    rows = []
    for label, answer in zip(labels, answers, strict=True):
        flat = flatten(answer)
        for name in report:
            if name not in flat and not is_void(flat, name):
                raise UsageError(f"report: the answer has no {name!r}; it has {', '.join(sorted(flat)[:40])}, ...")
        rows.append([*label.values(), *(_show(flat.get(name), interval_of(flat, name)) for name in report)])
    for line in folded([*labels[0], *report], rows, repeat=len(labels[0])):
        click.echo(line)


def conclusion(labels: list[dict[str, str]], goals: list[dict[str, Any]]) -> str:
    """One sentence: the first cell of the sweep that meets its goal with CERTAINTY, and which before it may; or that none does."""
    from sim.results.chance import CERTAINTY
    from sim.units import format_number

    bound, sure = f"{goals[0]['metric']} <= {format_number(goals[0]['limit'])}", f"{100 * CERTAINTY:.0f} %"
    names = [", ".join(f"{name} {value}" for name, value in label.items()) or "as asked" for label in labels]
    first = next((i for i, goal in enumerate(goals) if goal["certain"]), None)
    may = [f"{names[i]} ({_chance(goal)})" for i, goal in enumerate(goals[:first]) if goal["certain"] is None]
    open_ = f" Undecided at {sure}: {', '.join(may)}." if may else ""
    if first is not None:
        return f"=> {names[first]}: the first to hold {bound} with a chance of at least {sure} ({_chance(goals[first])}).{open_}"
    best = max(goals, key=lambda goal: goal["chance"])
    return f"=> none holds {bound} with a chance of at least {sure} for sure; the best is {_chance(best)}.{open_}"


def _chance(goal: dict[str, Any]) -> str:
    return f"{goal['chance']:.2f}, {goal['chance_low']:.2f}-{goal['chance_high']:.2f} by {goal['trials']} trials"


def _show(value: Any, noise: Any) -> str:
    from sim.units import format_number, format_range

    def one(item: Any) -> str:
        if item is None:
            return "none"
        return format_number(item) if isinstance(item, float) else str(item)

    text = f"[{', '.join(map(one, value))}]" if isinstance(value, list) else one(value)
    return f"{text} {format_range(*noise)}" if isinstance(noise, list) and len(noise) == 2 and None not in noise else text
