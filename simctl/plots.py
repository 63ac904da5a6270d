"""Plots of answers, drawn without a display. matplotlib is imported only here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from sim.memory import device_memory, sequence_bytes
from sim.rates import RateDraws
from sim.units import format_tokens
from sim.whatif import Question, policies, step_seconds


def save(figure: Any, target: Path) -> None:
    """Write a figure atomically; the suffix picks the format."""
    from sim.errors import UsageError

    kind = target.suffix.lstrip(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise UsageError(f"cannot plot to {target.name}: use .png, .svg or .pdf")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(temporary, format=kind, dpi=130, bbox_inches="tight")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def new_figure(width: float = 8.0, height: float = 4.6) -> Any:
    """A figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def plot_what_if(q: Question, rates: RateDraws, target: Path) -> None:
    """Tok/s per sequence over context for each policy at the first batch, with 5-95 % bands."""
    figure = new_figure()
    axes = figure.subplots()
    batch = q.batches[0]
    contexts = np.unique(np.append(np.geomspace(2**12, max(2**20, q.context), 33), q.context))
    free = device_memory(q.model, q.gpu, q.precision, tp=q.tp, utilization=q.utilization).free
    for policy in policies((min(q.ks), max(q.ks)) if len(q.ks) > 1 else q.ks):
        if policy.kind in ("pages", "sink-window") or (policy.placement == "host" and q.gpu.unified_memory):
            continue
        middle, low, high = [], [], []
        for context in contexts:
            point = step_seconds(q, policy, float(batch), float(context), rates.point)
            draws = step_seconds(q, policy, float(batch), float(context), rates.draws, np)
            middle.append(1 / point)
            low.append(1 / np.quantile(draws, 0.95))
            high.append(1 / np.quantile(draws, 0.05))
        fits = np.array([batch * sequence_bytes(q.model, int(c), q.precision, policy, q.tp)[0] <= free for c in contexts])
        inside = np.where(fits, middle, np.nan)
        (line,) = axes.plot(contexts, inside, label=policy.label, linestyle="--" if policy.placement == "host" else "-")
        axes.plot(contexts, middle, color=line.get_color(), linestyle=":", linewidth=0.8, zorder=0)
        axes.fill_between(contexts, low, high, where=fits, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.axvline(q.context, color="0.6", linewidth=0.8)
    ticks = [2**e for e in range(12, int(np.log2(contexts[-1])) + 1, 2)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [format_tokens(t) for t in ticks])
    axes.set_yscale("log")
    axes.set_xlabel("context (tokens)")
    axes.set_ylabel("tokens/s per sequence")
    axes.set_title(f"{q.model.name} on {q.gpu.name}, batch {batch} (bands 5-95 %; dotted: does not fit)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
    save(figure, target)


def plot_regime(result: Any, title: str, target: Path) -> None:
    """Speed-up over (context, batch) with the break-even line, and hatching where dense does not fit."""
    from matplotlib.colors import TwoSlopeNorm

    figure = new_figure()
    axes = figure.subplots()
    values = np.log2(result.speedup).T
    limit = max(1.0, float(np.abs(values).max()))
    x, y = np.log2(result.contexts), np.log2(result.batches)
    mesh = axes.pcolormesh(x, y, values, cmap="RdBu", norm=TwoSlopeNorm(0.0, -limit, limit), shading="nearest", alpha=0.85)
    if result.speedup.shape[0] > 1 and result.speedup.shape[1] > 1 and result.speedup.min() < 1 < result.speedup.max():
        axes.contour(x, y, result.speedup.T, levels=[1.0], colors="k", linewidths=1.8)
    for i in range(len(x)):
        for j in range(len(y)):
            mark = "" if result.dense_fits[i, j] and result.sparse_fits[i, j] else "!"
            axes.text(x[i], y[j], f"{result.speedup[i, j]:.2f}{mark}", ha="center", va="center", fontsize=7)
    axes.set_xticks(x, [format_tokens(int(c)) for c in result.contexts])
    axes.set_yticks(y, [f"{int(b)}" for b in result.batches])
    axes.set_xlabel("context (tokens)")
    axes.set_ylabel("batch (sequences)")
    axes.set_title(title + "\nblack line: break-even; ! the cache does not fit the GPU's memory", fontsize=9)
    bar = figure.colorbar(mesh, ax=axes)
    ticks = [t for t in bar.get_ticks() if abs(t) <= limit]
    bar.set_ticks(ticks, labels=[f"{2**t:.3g}x" for t in ticks])
    save(figure, target)


def plot_reliability(runs: dict[str, tuple[Any, dict[str, float], float]], target: Path) -> None:
    """Share of requests inside intervals of each nominal level, by metric, over all scored experiments."""
    from calibrate.served.compare import LEVELS, reliability

    figure = new_figure(5.2, 4.8)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
    for name, (pairs, noise, run_noise) in runs.items():
        for metric, share in reliability(pairs, noise, run_noise).items():
            label = metric.removesuffix("_s").upper() if len(runs) == 1 else f"{name} {metric.removesuffix('_s').upper()}"
            axes.plot(LEVELS, share, marker="o", markersize=3, label=label)
    axes.set_xlabel("nominal level of the interval")
    axes.set_ylabel("share of requests inside")
    axes.set_title("Reliability of per-request intervals", fontsize=10)
    axes.set_aspect("equal")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
    save(figure, target)
