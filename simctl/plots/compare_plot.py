"""Cards side by side: output tokens per second and GPU over those of one user, a line a card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simctl.plots.answer_plots import DASHES, new_figure, save

MOST_LINES = 5
TICKS = tuple(lead * 10**decade for decade in range(5) for lead in (1, 2, 3, 5, 7))


def plot_compared(found: Mapping[str, Any], target: Path) -> None:
    """Of `Comparison.to_dict()`: the curve of one replica from one user (right) to a full one, and what the plan bought as a dot."""
    figure = new_figure()
    axes = figure.subplots()
    cards = [card for card in found["cards"] if card.get("curve")][:MOST_LINES]
    for style, card in enumerate(cards):
        x, y = zip(*card["curve"], strict=True)
        (line,) = axes.plot(x, y, linestyle=DASHES[style], label=f"{card['gpu']}: {card['usd_per_hour']:.2f} USD/h for {card['gpus']} GPUs")
        axes.plot(card["user_tokens_per_s"], card["gpu_tokens_per_s"], marker="o", color=line.get_color(), linestyle="none", zorder=3)
    axes.set_xscale("log")
    axes.set_yscale("log")
    points = [point for card in cards for point in (*card["curve"], (card["user_tokens_per_s"], card["gpu_tokens_per_s"]))]
    for axis, place in ((axes.xaxis, 0), (axes.yaxis, 1)):
        low, high = min(point[place] for point in points) / 1.15, max(point[place] for point in points) * 1.15
        ticks = [tick for tick in TICKS if low <= tick <= high]
        axis.set_ticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.set_ticks([], minor=True)
        (axes.set_xlim if place == 0 else axes.set_ylim)(low, high)
    axes.set_xlabel("output tokens/s of one user")
    axes.set_ylabel("output tokens/s per GPU")
    axes.set_title(f"{found['model']}: {', '.join(found['slo'])}\ndots: what the plan buys", loc="left", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, target)
