"""The plot of `python -m studies.knees`: efficiency over batch, a panel for every model and GPU, its knees marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.units import format_tokens
from simctl.plots.answer_plots import new_figure, save

if TYPE_CHECKING:
    from studies.knees.curves import EfficiencyCurve

COLUMNS = 4


def plot_curves(static: Sequence[EfficiencyCurve], served: Sequence[EfficiencyCurve], tau: float, target: Path) -> None:
    """Curves of engines stepped in process solid, of served runs dashed; a dot where one crosses tau, none where it never does."""
    panels: dict[str, list[tuple[EfficiencyCurve, str]]] = {}
    for curves, style in ((static, "-"), (served, "--")):
        for curve in curves:
            panels.setdefault(_title(curve), []).append((curve, style))
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(3.6 * columns, 3.0 * rows + 0.6)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    contexts = sorted({c.cell.context_tokens for c in (*static, *served)})
    colour = {context: f"C{i % 10}" for i, context in enumerate(contexts)}
    for axes, (title, found) in zip(grid.flat, panels.items(), strict=False):
        for curve, style in found:
            paint = colour[curve.cell.context_tokens]
            axes.plot(curve.batches, curve.etas, style, color=paint, marker=".", markersize=3, linewidth=1)
            if not (knee := curve.knee(tau)).censored:
                axes.plot([knee.batch], [tau], "o", color=paint, markersize=5, markeredgecolor="black", markeredgewidth=0.5)
        axes.axhline(tau, color="grey", linewidth=0.8, linestyle=":")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylim(0, 1.08)
        axes.set_title(title, fontsize=9)
        axes.grid(alpha=0.2)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for row in grid:
        row[0].set_ylabel("t(1) / t(B)")
    figure.supxlabel("batch; of a served run, clients" if served else "batch", fontsize=10)
    figure.legend(handles=_legend(figure, contexts, colour, bool(served)), loc="outside lower center", ncols=8, fontsize=8)
    figure.suptitle(f"efficiency per request; knee at tau {tau:g}", fontsize=10)
    figure.set_layout_engine("constrained")
    save(figure, target)


def _title(curve: EfficiencyCurve) -> str:
    cell = curve.cell
    return f"{cell.model} {cell.weight_dtype}, {f'{cell.tp} x ' if cell.tp > 1 else ''}{cell.gpu}"


def _legend(figure: Any, contexts: Sequence[int], colour: dict[int, str], served: bool) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour[c], label=f"{format_tokens(c)} context") for c in contexts]
    return [*handles, *([Line2D([], [], color="black", linestyle="--", label="served")] if served else [])]
