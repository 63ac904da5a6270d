"""Text of `simctl run` for a sweep: a table over its cells, and the first that meets its goal."""

from __future__ import annotations

import math
from typing import Any

import click

from sim.errors import UsageError
from sim.results.chance import CERTAINTY
from sim.results.paired import NO_PAIRS, difference, level
from sim.sweeps.figures import flatten, interval_of, is_void
from sim.units import format_number, format_range
from simctl.text.layout import folded

RATE = "request-rate"


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
    bound, certainty = f"{goals[0]['metric']} <= {format_number(goals[0]['limit'])}", f"{100 * CERTAINTY:.0f} %"
    names = [_named(label) for label in labels]
    first = next((i for i, goal in enumerate(goals) if goal["certain"]), None)
    may = [i for i, goal in enumerate(goals[:first]) if goal["certain"] is None]
    open_ = f" Undecided at {certainty}: {', '.join(f'{names[i]} ({_chance(goals[i])})' for i in may)}." if may else ""
    if first is not None:
        found = f"{_range(labels[may[0]], labels[first])}: {names[first]} is" if may else f"{names[first]}:"
        return f"=> {found} the first to hold {bound} with a chance of at least {certainty} ({_chance(goals[first])}).{open_}"
    best = max(goals, key=lambda goal: goal["chance"])
    return f"=> none holds {bound} with a chance of at least {certainty} for sure; the best is {_chance(best)}.{open_}"


def compared(labels: list[dict[str, str]], answers: list[dict[str, Any]], report: tuple[str, ...]) -> str | None:
    """One sentence: the best cell by the first figure that is a number with an interval everywhere, and of simulations (sim.results.paired)
    which are no different from it and how far the next one is. None where there is no such figure.
    """
    flats = [flatten(answer) for answer in answers]
    for name in report if len(answers) > 1 else ():
        if not all(isinstance(flat.get(name), int | float) and isinstance(interval_of(flat, name), list) for flat in flats):
            continue
        most = name.endswith(("throughput", "goodput", "tok_s", "chance", "batch", "per_s"))
        pairs = [flat.get(f"pairs.{name}", NO_PAIRS) for flat in flats]
        levels = [level(row) for row in pairs]  # of all runs: the one that is shown may have been lucky
        ranked = [flat[name] for flat in flats] if any(map(math.isnan, levels)) else levels
        best, *others = sorted(range(len(flats)), key=ranked.__getitem__, reverse=most)
        gaps = [(i, gap) for i in others if (gap := difference(pairs[best], pairs[i])) is not None]
        same = [_apart(labels[i], gap) for i, gap in gaps if gap[1] <= 0.0 <= gap[2]]
        said = [f"no difference from {'; '.join(same)}"] if same else []
        said += [f"apart from {_apart(labels[i], gap)}" for i, gap in gaps if not gap[1] <= 0.0 <= gap[2]][:1]
        return f"=> {'highest' if most else 'lowest'} {name}: {'; '.join([_named(labels[best]), *said])}."
    return None


def _apart(label: dict[str, str], gap: tuple[float, float, float]) -> str:
    return f"{_named(label)} ({'+' if gap[0] > 0 else ''}{format_number(gap[0])} {format_range(*gap[1:])})"


def knees(labels: list[dict[str, str]], answers: list[dict[str, Any]], report: tuple[str, ...]) -> list[str]:
    """Of a sweep of request rates: between which two the first latency that is reported doubles from its value at the lowest one, by the
    values of the other options.
    """
    name = next((name for name in report if name.endswith("_ms")), None)
    if (
        name is None
        or not all(RATE in label for label in labels)
        or not all(isinstance(flatten(each).get(name), float) for each in answers)
    ):
        return []
    groups: dict[str, list[tuple[float, float]]] = {}
    for label, answer in zip(labels, answers, strict=True):
        others = {key: value for key, value in label.items() if key != RATE}
        groups.setdefault(f"{_named(others)}: " if others else "", []).append((float(label[RATE]), flatten(answer)[name]))
    lines = []
    for named, points in groups.items():
        (lowest, first), *_ = points = sorted(points)
        beyond = next((i for i, (_, value) in enumerate(points) if value > 2 * first), None)
        if beyond is None:
            lines.append(f"=> {named}no knee up to {points[-1][0]:g} requests/s: {name} stays below twice its {first:.3g} at {lowest:g}.")
        else:
            between = f"{points[beyond - 1][0]:g} and {points[beyond][0]:g} requests/s"
            lines.append(f"=> {named}knee between {between}: there {name} doubles from its {first:.3g} at {lowest:g}.")
    return lines


def _named(label: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in label.items()) or "as asked"


def _range(first: dict[str, str], last: dict[str, str]) -> str:
    """From one cell to a later one; options that are the same in both are said once."""
    apart = [name for name in last if first[name] != last[name]]
    if len(apart) != 1:
        return f"{_named(first)} to {_named(last)}"
    return _named(last | {apart[0]: f"{first[apart[0]]} to {last[apart[0]]}"})


def _chance(goal: dict[str, Any]) -> str:
    return f"{goal['chance']:.2f}, {goal['chance_low']:.2f}-{goal['chance_high']:.2f} by {goal['trials']} trials"


def _show(value: Any, noise: Any) -> str:
    def one(item: Any) -> str:
        if item is None:
            return "none"
        return format_number(item) if isinstance(item, float) else str(item)

    text = f"[{', '.join(map(one, value))}]" if isinstance(value, list) else one(value)
    return f"{text} {format_range(*noise)}" if isinstance(noise, list) and len(noise) == 2 and None not in noise else text
