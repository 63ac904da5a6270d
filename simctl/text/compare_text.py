"""Text of `simctl plan --compare`: a line a card, their curves of speed against throughput, and the cheapest in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from sim.planning.compare import Card, Comparison
from sim.units import format_number
from simctl.text.heading import model_title
from simctl.text.layout import WIDTH, aligned, fill

HEADER = ("USD/h", "in", "out", "user", "GPU", "chance", "kW")
LEGEND = "USD/h; USD per million tokens in and out; tok/s of a user and per GPU; kW: sum of power limits"
ROWS = 10  # of the chart
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def compare_lines(found: Comparison) -> list[str]:
    """The whole answer."""
    slo = " ".join(condition.text for condition in found.conditions)
    lasts = f" {found.lasts}" if found.lasts else ""
    lines = [fill(f"{model_title(found.model)} that meets {slo}{lasts} with a chance of 0.95, by card")]
    cards = [card for card in found.cards if card.point]
    if cards:
        lines.append(fill(LEGEND))
        figures = aligned(HEADER, [_row(card) for card in cards], left=0)
        lines += [f"{line}  {name}" for line, name in zip(figures, ["deployment", *map(_named, cards)], strict=True)]
    lines += [fill(f"none on {card.gpu}: {card.why}", later="  ") for card in found.cards if not card.point]
    lines += [fill(f"out: {name}: {why}", later="  ") for name, why in found.skipped.items()]
    if curves := {card.gpu: card.curve for card in cards}:
        lines += ["", *chart(curves)]
    prices = ", ".join(f"{card.gpu} {card.usd_per_gpu_hour:g}" for card in found.cards)
    return [*lines, "", fill(f"=> {conclusion(found)} USD per GPU-hour: {prices}.", later="   ")]


def conclusion(found: Comparison) -> str:
    """The cheapest card in words, and what the others cost beside it."""
    ranked = found.ranked
    if not ranked:
        return "No card meets it."
    first = ranked[0]
    assert first.point is not None
    others = [f"{card.gpu} {card.point.usd_per_hour / first.point.usd_per_hour:.2g} times" for card in ranked[1:] if card.point]
    beside = f" {', '.join(others)} of that." if others else ""
    if found.cheapest is not first:
        return f"Undecided: {first.gpu} looks cheapest, {_bought(first)}; more seconds of --within would tell.{beside}"
    return f"{first.gpu} is cheapest: {_bought(first)}.{beside}"


def _bought(card: Card) -> str:
    assert card.point is not None
    if card.tokens is not None:
        tokens = ", ".join(f"{usd:.3g} {kind}" for kind, usd in card.tokens.to_dict().items())
    else:
        tokens = f"{card.point.usd_per_mtok:.3g} output"
    return f"{_named(card)}, {card.point.usd_per_hour:.2f} USD/hour, USD per million tokens: {tokens}"


def _named(card: Card) -> str:
    """Replicas of the deployment, with the fewest that are not ruled out, and whether the trials leave it open."""
    assert card.best is not None
    choice, count = card.result.choices[card.best.choice], card.best.replicas
    least = min(card.result.at_least(card.best), count)
    counted = f"{least} to {count}" if least < count else str(count)
    return f"{counted} of {choice.name}{'' if card.decided else ', undecided'}"


def _row(card: Card) -> list[str]:
    assert card.point is not None
    assert card.best is not None
    by_kind = card.tokens.to_dict() if card.tokens else {"output": card.point.usd_per_mtok}
    cost = [f"{by_kind[kind]:.2g}" if kind in by_kind else "-" for kind in ("input", "output")]
    kw = card.result.choices[card.best.choice].kw_of(card.best.replicas)
    speed, each = card.point.user_tokens_per_s, card.point.gpu_tokens_per_s
    return [
        f"{card.point.usd_per_hour:.2f}",
        *cost,
        f"{speed:.3g}",
        f"{each:.3g}",
        f"{card.best.chance.value:.2f}",
        f"{kw:.3g}" if kw else "-",
    ]


def chart(curves: Mapping[str, Sequence[tuple[float, float]]]) -> list[str]:
    """Output tok/s per GPU over tok/s of a user, both logarithmic: a letter a card, between its numbers of users along straight lines."""
    points = [point for curve in curves.values() for point in curve]
    (left, right), (low, high) = (_bounds([point[axis] for point in points]) for axis in (0, 1))
    columns = WIDTH - 10
    grid = [[" "] * columns for _ in range(ROWS)]
    for letter, curve in zip(LETTERS, curves.values(), strict=False):
        for x, y in _between(curve):
            column = round((columns - 1) * _share(x, left, right))
            row = ROWS - 1 - round((ROWS - 1) * _share(y, low, high))
            grid[row][column] = letter if grid[row][column] in (" ", letter) else "*"
    key = ", ".join(f"{letter} {gpu}" for letter, gpu in zip(LETTERS, curves, strict=False))
    labels = [format_number(high, 3), *[""] * (ROWS - 2), format_number(low, 3)]
    lines = [fill(f"tok/s per GPU over tok/s per user, from one user (right) to a full replica: {key}; * several")]
    lines += [f"{label:>8} |{''.join(cells)}".rstrip() for label, cells in zip(labels, grid, strict=True)]
    lines.append(" " * 9 + "+" + "-" * columns)
    first, last = format_number(left, 3), format_number(right, 3)
    return [*lines, f"{'':10}{first}{last:>{columns - len(first)}}"]


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low) if high > low else 0.0


def _between(curve: Sequence[tuple[float, float]], steps: int = 40) -> list[tuple[float, float]]:
    found = list(curve[:1])
    for (x0, y0), (x1, y1) in pairwise(curve):
        found += [(x0 * (x1 / x0) ** (i / steps), y0 * (y1 / y0) ** (i / steps)) for i in range(1, steps + 1)]
    return found


def print_compared(found: Comparison, as_json: bool) -> None:
    """The answer to stdout."""
    import json

    import click

    plain: dict[str, Any] = found.to_dict() | {"conclusion": conclusion(found)}
    click.echo(json.dumps(plain, indent=2) if as_json else "\n".join(compare_lines(found)))
