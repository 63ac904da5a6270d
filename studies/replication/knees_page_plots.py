"""Pictures of docs/replication.md: measured, predicted and published knees; single-stream decode steps and the three-parameter form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from studies.replication import three_parameter

MARKS = {2048: "o", 8192: "s", 32000: "^"}
BATCHES = [4, 8, 16, 32]
DENSE, SPARSE = "C0", "C3"  # as in every picture of these pages
SELECTIONS = {0: ("dense", DENSE, "-", "o"), 8: ("sparse, 8 blocks", SPARSE, "-", "^"), 32: ("sparse, 32 blocks", SPARSE, "--", "v")}


def knees(known: dict[tuple[str, int], float], found: dict[tuple[str, int], Any], formula: dict[tuple[str, int], Any], path: Path) -> None:
    """Knees measured here against predicted and published ones, log-log; hollow marks are beyond their ladder."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.6), sharey=True, layout="constrained")
    published = {cell: (batch, False) for cell, batch in known.items()}
    predicted = {cell: (knee.batch, knee.censored) for cell, knee in formula.items()}
    for axis, other, name in ((axes[0], predicted, "predicted"), (axes[1], published, "published")):
        for (model, context), knee in found.items():
            if (model, context) in other:
                batch, beyond = other[model, context]
                colour = "C1" if "gemma" in model else "C0"
                face = "none" if beyond or knee.censored else colour
                axis.plot(batch, knee.batch, MARKS[context], color=colour, markerfacecolor=face, markersize=6)
        axis.plot([3, 50], [3, 50], color="0.6", linewidth=1)
        axis.set(xscale="log", yscale="log", xlim=(2.7, 52), ylim=(2.7, 52), xlabel=f"{name} knee (batch)", aspect="equal")
        axis.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
        axis.set_yticks(BATCHES, [str(batch) for batch in BATCHES])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("measured knee (batch), H100, fp8")
    handles = [plt.Line2D([], [], color="0.3", marker=m, linestyle="", label=f"{c} tokens") for c, m in MARKS.items()]
    handles += [plt.Line2D([], [], color=c, marker="o", linestyle="", label=t) for c, t in (("C1", "Gemma 3"), ("C0", "other models"))]
    handles += [plt.Line2D([], [], color="0.6", label="equal")]
    figure.legend(handles=handles, fontsize=8, ncols=6, loc="outside lower center", frameon=False)
    _save(plt, figure, path)


def steps(files: list[Path], path: Path) -> None:
    """Time of a whole decode step against context at batch 1, by GPU, with the fitted form (selected bytes at beta) as lines."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, len(files), figsize=(9, 4.2), sharey=True, layout="constrained")
    for axis, file in zip(axes, files, strict=True):
        cells = dict(three_parameter.subsets(three_parameter.read_decode(file)))["1"]
        form = three_parameter.fit(cells, bytes_of_selection=True)
        for k, (label, colour, dash, mark) in SELECTIONS.items():
            part = cells.where(cells.k_blocks == k)
            order = np.argsort(part.context_tokens)
            axis.plot(part.context_tokens[order], part.step_s[order] * 1e3, mark, color=colour, markersize=5)
            axis.plot(part.context_tokens[order], form.step_s(part)[order] * 1e3, color=colour, linestyle=dash, linewidth=1)
            axis.plot([], [], color=colour, linestyle=dash, marker=mark, label=label)
        axis.set(xlabel="context (tokens)", title=cells.gpu.removeprefix("NVIDIA "), yscale="log")
        axis.set_xscale("log", base=2)
        axis.set_xticks([2.0**n for n in (13, 15, 17, 19, 20)], ["8K", "32K", "128K", "512K", "1M"])
        axis.set_yticks([4, 6, 10, 16, 25], ["4", "6", "10", "16", "25"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("decode step, batch 1 (ms)")
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, ncols=3, loc="outside lower center", frameon=False)
    _save(plt, figure, path)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(plt: Any, figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=90, metadata={"Software": ""})
    plt.close(figure)
