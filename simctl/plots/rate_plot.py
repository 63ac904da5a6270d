"""Forest of rates: every prior beside its posterior, in units of the posterior's median."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simctl.plots.answer_plots import new_figure, save

if TYPE_CHECKING:
    from calibrate.steps.calibration import RateRow

LOWEST, HIGHEST = 0.3, 3.5  # of the axis; a prior that is wider is cut there


def plot_rates(rates: Sequence[RateRow], title: str, target: Path) -> None:
    """5-95 % intervals and medians of the rates learnt; a rate of which the prior says most is marked."""
    figure = new_figure(8.0, 1.4 + 0.34 * len(rates))
    axes = figure.subplots()
    for row, rate in enumerate(reversed(rates)):
        centre = rate.posterior[1]
        for shift, each, colour, width in ((0.16, rate.prior, "0.65", 2.0), (-0.16, rate.posterior, "C0", 4.0)):
            low, median, high = (value / centre for value in each)
            axes.plot(
                [min(max(low, LOWEST), HIGHEST), max(min(high, HIGHEST), LOWEST)],
                [row + shift] * 2,
                color=colour,
                linewidth=width,
                solid_capstyle="butt",
            )
            if LOWEST < median < HIGHEST:
                axes.plot(median, row + shift, "|", color="k", markersize=7)
            elif not LOWEST < low < HIGHEST and not LOWEST < high < HIGHEST:  # all of it lies beyond
                axes.plot(min(max(median, LOWEST), HIGHEST), row + shift, ">" if median > HIGHEST else "<", color=colour, clip_on=False)
    names = [f"{rate.name} (prior-led)" if rate.prior_led else rate.name for rate in reversed(rates)]
    axes.set(yticks=range(len(rates)), yticklabels=names, xscale="log", xlim=(LOWEST, HIGHEST), xlabel="over the posterior median")
    axes.set_xticks([0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0], labels=["0.3", "0.5", "0.7", "1", "1.5", "2", "3"])
    axes.minorticks_off()
    axes.grid(axis="x", color="0.92")
    axes.plot([], [], color="0.65", linewidth=2.0, label="prior, 5-95 %")
    axes.plot([], [], color="C0", linewidth=4.0, label="posterior, 5-95 %")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    figure.text(0.01, 0.005, title.partition(" (")[0], fontsize=8, color="0.4")
    save(figure, target)
