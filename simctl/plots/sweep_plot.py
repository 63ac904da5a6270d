"""Reported figures of a sweep over what is swept, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.sweeps.figures import flatten, interval_of
from simctl.plots.answer_plots import DASHES, new_figure, save

MOST_PANELS, MOST_LINES = 4, 5


def plot_sweep(
    labels: Sequence[Mapping[str, str]], answers: Sequence[Mapping[str, Any]], report: Sequence[str], question: str, target: Path
) -> None:
    """A panel a figure, a line for each value of the other options. UsageError where nothing that is swept or reported is a number."""
    flats = [flatten(dict(answer)) for answer in answers]
    names = [name for name in report if any(isinstance(flat.get(name), int | float) for flat in flats)][:MOST_PANELS]
    across = next((axis for axis in labels[0] if all(_number(label[axis]) is not None for label in labels)), None)
    if across is None or not names:
        raise UsageError("--plot: nothing that is swept, or nothing that is reported, is a number")
    lines: dict[str, list[int]] = {}
    for i, label in enumerate(labels):
        lines.setdefault(", ".join(f"{name} {value}" for name, value in label.items() if name != across), []).append(i)
    figure = new_figure(8.0, 1.0 + 2.6 * len(names))
    panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for axes, name in zip(panels, names, strict=True):
        for style, (said, places) in enumerate(list(lines.items())[:MOST_LINES]):
            kept = sorted((float(labels[i][across]), i) for i in places if isinstance(flats[i].get(name), int | float))
            x, y = [at for at, _ in kept], [flats[i][name] for _, i in kept]
            (line,) = axes.plot(x, y, marker="o", markersize=3, linestyle=DASHES[style], label=said or None)
            spans = [interval_of(flats[i], name) for _, i in kept]
            if all(isinstance(span, list) and len(span) == 2 and None not in span for span in spans):
                axes.fill_between(
                    x, [low for low, _ in spans], [high for _, high in spans], color=line.get_color(), alpha=0.15, linewidth=0
                )
        axes.set_ylabel(name, fontsize=8)
        axes.grid(alpha=0.3)
    panels[-1].set_xlabel(across)
    panels[0].set_title(question, loc="left", fontsize=9)
    if any(lines):
        panels[0].legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, target)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
