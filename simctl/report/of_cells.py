"""Pictures of a table of runs: each reported figure over what is swept, with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sim.errors import UsageError
from sim.sweeps.figures import flatten, interval_of
from simctl.report import charts
from simctl.report.page import Picture, cut, number

MOST_PICTURES, MOST_LINES = 4, 5


def pictures(labels: Sequence[Mapping[str, str]], answers: Sequence[Mapping[str, Any]], report: Sequence[str]) -> Iterator[Picture]:
    """A picture a figure, a line for each value of the other options. UsageError where nothing that is swept or reported is a number."""
    flats = [flatten(dict(answer)) for answer in answers]
    names = [name for name in report if any(isinstance(flat.get(name), int | float) for flat in flats)][:MOST_PICTURES]
    across = next((axis for axis in labels[0] if all(_is_number(label[axis]) for label in labels)), None)
    if across is None or not names:
        raise UsageError("--plot: nothing that is swept, or nothing that is reported, is a number")
    for name in names:
        rows = sorted(_rows(labels, flats, across, name), key=lambda row: float(row["x"]))
        series = list(dict.fromkeys(row["series"] for row in rows))[:MOST_LINES]
        rows = [row for row in rows if row["series"] in series]
        low, high = min(rows, key=lambda row: float(row["y"])), max(rows, key=lambda row: float(row["y"]))
        reading = f"From {number(low['y'])} at {across} {low['x']:g} to {number(high['y'])} at {across} {high['x']:g}."
        x, y = charts.axis(cut(across)), charts.axis(name, zero=True)
        yield Picture(name, f"How does {name} change with {cut(across)}?", reading, charts.scatter(rows, x, y, series, (), joined=True))


def _rows(labels: Sequence[Mapping[str, str]], flats: Sequence[dict[str, Any]], across: str, name: str) -> Iterator[charts.Row]:
    for label, flat in zip(labels, flats, strict=True):
        if isinstance(flat.get(name), int | float):
            others = ", ".join(f"{axis} {value}" for axis, value in label.items() if axis != across) or name
            span = interval_of(flat, name)
            known = isinstance(span, list) and len(span) == 2 and None not in span
            yield {"x": float(label[across]), "y": flat[name], "series": others} | (
                dict(zip(("low", "high"), span, strict=True)) if known else {}
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
