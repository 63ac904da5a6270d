"""Figures of docs/replication.md: knees measured, published and priced; single-stream decode steps and the three-parameter form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from calibrate.steps import three_parameter

MARKS = {2048: "o", 8192: "s", 32000: "^"}


def knees(known: dict[tuple[str, int], float], found: dict[tuple[str, int], Any], bill: dict[tuple[str, int], Any], path: Path) -> None:
    """Knees measured here against the bill's and against the published, log-log; hollow marks are beyond their ladder, Gemma in red."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), sharey=True)
    published = {cell: (batch, False) for cell, batch in known.items()}
    priced = {cell: (knee.batch, knee.censored) for cell, knee in bill.items()}
    for axis, other, name in ((axes[0], priced, "bill, rates of the bf16 grids"), (axes[1], published, "published")):
        for (model, context), knee in found.items():
            if (model, context) in other:
                batch, beyond = other[model, context]
                colour = "C3" if "gemma" in model else "C0"
                face = "none" if beyond or knee.censored else colour
                axis.plot(batch, knee.batch, MARKS[context], color=colour, markerfacecolor=face, markersize=6)
        axis.plot([3, 50], [3, 50], color="0.6", linewidth=1)
        axis.set(xscale="log", yscale="log", xlim=(2.7, 52), ylim=(2.7, 52), xlabel=f"knee batch, {name}")
        axis.set_xticks([4, 8, 16, 32], ["4", "8", "16", "32"])
        axis.set_yticks([4, 8, 16, 32], ["4", "8", "16", "32"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("knee batch, measured here (H100, fp8)")
    handles = [plt.Line2D([], [], color="0.3", marker=m, linestyle="", label=f"{c} tokens") for c, m in MARKS.items()]
    handles += [plt.Line2D([], [], color=c, marker="o", linestyle="", label=t) for c, t in (("C3", "Gemma 3"), ("C0", "other models"))]
    axes[0].legend(handles=handles, fontsize=8)
    _save(plt, figure, path)


def steps(files: list[Path], path: Path) -> None:
    """Time of a whole decode step against context at batch 1, by GPU, with the fitted form (selected bytes priced) as lines."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, len(files), figsize=(9, 4.0), sharey=True)
    for axis, file in zip(axes, files, strict=True):
        cells = dict(three_parameter.subsets(three_parameter.read_decode(file)))["1"]
        form = three_parameter.fit(cells, bytes_of_selection=True)
        for index, k in enumerate((0, 8, 32)):
            part = cells.where(cells.k_blocks == k)
            order = np.argsort(part.context_tokens)
            label = "dense" if k == 0 else f"sparse, k = {k}"
            axis.plot(part.context_tokens[order], part.step_s[order] * 1e3, "o", color=f"C{index}", label=label, markersize=5)
            axis.plot(part.context_tokens[order], form.step_s(part)[order] * 1e3, color=f"C{index}", linewidth=1)
        axis.set(xlabel="context (tokens)", title=f"{cells.gpu}, batch 1", yscale="log")
        axis.set_xscale("log", base=2)
        axis.set_xticks([2.0**n for n in (13, 15, 17, 19, 20)], ["8K", "32K", "128K", "512K", "1M"])
        axis.set_yticks([4, 6, 10, 16, 25], ["4", "6", "10", "16", "25"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("decode step of Qwen2.5-7B's shape (ms)")
    axes[0].legend(fontsize=8)
    _save(plt, figure, path)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(plt: Any, figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=90, metadata={"Software": ""})
    plt.close(figure)
