"""Plots of a run of the benchmark, as small PNG files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kernels.report_table import best_of, cells, context_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kernels.report_table import Table

LINES = {
    "paged": ("dense paged, ours", "C0", "o-"),
    "contiguous": ("dense contiguous, ours", "C0", "o--"),
    "sdpa_cudnn_gqa": ("cuDNN SDPA", "C1", "s-"),
    "sdpa_flash_gqa": ("flash SDPA", "C2", "s-"),
    "fa3_paged_planned": ("FlashAttention 3, paged", "C5", "v-"),
    "minmax_fp8": ("sparse k=8, fp8 bounds", "C3", "^-"),
    "minmax": ("sparse k=8, bf16 bounds", "C4", "^-"),
}
ORDERS = {
    "paged": ("pages in random order", "C3", "o"),
    "paged_sorted": ("the same, sorted", "C4", "D"),
    "paged_in_order": ("in the sequence's order", "C0", "s"),
    "contiguous": ("contiguous", "C2", "^"),
}


def write(table: Table, folder: Path) -> None:
    """`folder`/<table>_attention.png: time of one layer's attention against context, batch 1 and 8; <table>_orders.png: dense decode
    over the best SDPA backend by tokens in the batch, for orders of its pages."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(exist_ok=True)
    if not table.pick(suite="dense"):
        return
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axis, batch in zip(axes, (1.0, 8.0), strict=True):
        for variant, (label, colour, style) in LINES.items():
            rows = [
                r for r in table.pick(batch=batch, variant=variant)
                if r["op"] == "dense_decode" or (r["op"] == "select_gather" and r["k_blocks"] == 8)
            ]  # fmt: skip
            points = sorted((r["context"], float(r["median"]) * 1e6) for r in rows)  # type: ignore[arg-type,type-var]
            if points:
                axis.loglog(*zip(*points, strict=True), style, color=colour, label=label, markersize=4, linewidth=1)
        axis.set_xscale("log", base=2)
        ticks = [2.0**n for n in (13, 15, 17, 19, 21)]
        axis.set_xticks(ticks, ["8K", "32K", "128K", "512K", "2M"])
        axis.set_title(f"{table.attributes['gpu']}, batch {int(batch)}", fontsize=9)
        axis.set_xlabel("context (tokens)")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("attention of one layer (us)")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(folder / f"{table.name}_attention.png", dpi=90, metadata={"Software": ""})
    plt.close(figure)
    figure, axis = plt.subplots(figsize=(9, 3.4))
    _orders(table, axis)
    figure.tight_layout()
    figure.savefig(folder / f"{table.name}_orders.png", dpi=90, metadata={"Software": ""})
    plt.close(figure)


def _orders(table: Table, axis: Axes) -> None:
    """One column of points per cell from 32K up, cells by tokens in the batch."""
    held = sorted(((b, c) for b, c in cells(table, "dense") if c >= 2**15 and best_of(table, "sdpa", b, c)), key=lambda x: (x[0] * x[1], x))
    for variant, (label, colour, marker) in ORDERS.items():
        times = [table.value(suite="dense", batch=b, context=c, variant=variant) for b, c in held]
        points = [(i, t / float(best_of(table, "sdpa", *at)["median"])) for i, (at, t) in enumerate(zip(held, times, strict=True)) if t]  # type: ignore[index,arg-type]
        if len(points) == len(held):
            axis.plot(*zip(*points, strict=True), marker, color=colour, label=label, markersize=5)
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(held)), [f"{int(b)} x {context_text(c)}" for b, c in held], rotation=60, fontsize=7)
    axis.set_ylabel("time over the best SDPA's")
    axis.set_title(f"{table.attributes['gpu']}: dense decode, sequences x context", fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
