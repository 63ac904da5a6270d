"""Plots of answers, drawn without a display. matplotlib is imported only here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.files import replacing
from sim.units import format_tokens

if TYPE_CHECKING:
    from sim import RateDraws
    from sim.closed_form.regime import Regimes
    from sim.closed_form.what_if import WhatIf
    from sim.results.record import RunRecord

DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)))


def save(figure: Any, target: Path) -> None:
    """Write a figure atomically; the suffix picks the format."""
    kind = target.suffix.lstrip(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise UsageError(f"cannot plot to {target.name}: use .png, .svg or .pdf")
    with replacing(target) as temporary:
        figure.savefig(temporary, format=kind, dpi=130, bbox_inches="tight")


def new_figure(width: float = 8.0, height: float = 4.6) -> Any:
    """A figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def plot_what_if(q: WhatIf, rates: RateDraws, target: Path) -> None:
    """Tok/s per sequence over context for dense and block-128 attention at the first batch, with 5-95 % bands."""
    from sim.closed_form.what_if import policies, step_seconds

    figure, d, batch = new_figure(), q.deployment, q.batches[0]
    axes = figure.subplots()
    contexts = np.unique(np.append(np.geomspace(2**12, max(2**20, q.context), 33), q.context))
    free = d.memory().free
    q = q.settled(rates)
    every = [p for p in map(q.runner.policy, policies((max(q.budgets),))) if p.kind in ("dense", "blocks") and not q.runner.lacks(p)]
    drawn = [p for p in every if not (p.placement == "host" and d.gpu.unified_memory)]
    for i, policy in enumerate(drawn):
        point = np.array([1 / step_seconds(q, policy, float(batch), float(c), rates.point) for c in contexts])
        draws = np.array([1 / step_seconds(q, policy, float(batch), float(c), rates.draws, np) for c in contexts])
        low, high = np.quantile(draws, [0.05, 0.95], axis=1)
        fits = np.array([batch * d.request_bytes(int(c), policy)[0] <= free for c in contexts])
        (line,) = axes.plot(contexts, np.where(fits, point, np.nan), label=policy.label, linestyle=DASHES[i])
        axes.plot(contexts, point, color=line.get_color(), linestyle=":", linewidth=0.8, zorder=0)
        axes.fill_between(contexts, low, high, where=fits, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.axvline(q.context, color="0.6", linewidth=0.8)
    ticks = [2**e for e in range(12, int(np.log2(contexts[-1])) + 1, 2)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [format_tokens(t) for t in ticks])
    axes.set_yscale("log")
    axes.set_xlabel("context (tokens)")
    axes.set_ylabel("tokens/s per sequence")
    where = f"{d.model.name} on {d.gpu.name}, stack {q.runner.name}, batch {batch}"
    axes.set_title(f"{where} (bands 5-95 %; dotted: does not fit)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, target)


def plot_regime(result: Regimes, title: str, target: Path) -> None:
    """Speed-up over (context, batch) with the break-even line, and hatching where dense does not fit."""
    from matplotlib.colors import TwoSlopeNorm

    figure = new_figure()
    axes = figure.subplots()
    values = np.log2(result.speedup).T
    limit = max(1.0, float(np.abs(values).max()))
    x, y = np.log2(result.contexts), np.log2(result.batches)
    mesh = axes.pcolormesh(x, y, values, cmap="RdBu", norm=TwoSlopeNorm(0.0, -limit, limit), shading="nearest")
    if result.speedup.shape[0] > 1 and result.speedup.shape[1] > 1 and result.speedup.min() < 1 < result.speedup.max():
        axes.contour(x, y, result.speedup.T, levels=[1.0], colors="k", linewidths=1.8)
    for i in range(len(x)):
        for j in range(len(y)):
            mark = "" if result.dense_fits[i, j] and result.sparse_fits[i, j] else "!"
            colour = "w" if abs(values[j, i]) > 0.6 * limit else "k"  # legible on the colour below it
            axes.text(x[i], y[j], f"{result.speedup[i, j]:.2f}{mark}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_xticks(x, [format_tokens(int(c)) for c in result.contexts])
    axes.set_yticks(y, [f"{int(b)}" for b in result.batches])
    axes.set_xlabel("context (tokens)")
    axes.set_ylabel("batch (sequences)")
    axes.set_title(title + "\nblack line: break-even; ! the cache does not fit the GPU's memory", fontsize=9)
    bar = figure.colorbar(mesh, ax=axes)
    ticks = np.arange(-int(limit), int(limit) + 1)
    bar.set_ticks(ticks, labels=[f"{2.0**t:g}x" for t in ticks])
    save(figure, target)


def plot_reliability(runs: dict[str, tuple[Any, Mapping[str, float], float]], target: Path) -> None:
    """Share of requests inside intervals of each nominal level, by metric, over all scored experiments."""
    from calibrate.served.scores import LEVELS, reliability

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


def plot_places(found: Mapping[str, Mapping[str, Sequence[NDArray[np.float64]]]], target: Path) -> None:
    """Where measured times lie in their predicted distributions (PIT), by what was left out and metric: level where predictions are right,
    high in the middle where they are too wide, at an end where they are too low or too high.
    """
    figure, columns = new_figure(9.0, 1.9 * math.ceil(len(found) / 4)), 4
    panels = figure.subplots(math.ceil(len(found) / columns), columns, sharex=True, squeeze=False).ravel()
    for axes, (part, by_metric) in zip(panels, found.items(), strict=False):
        for metric, several in by_metric.items():
            place = np.concatenate(several)
            share, edges = np.histogram(place[np.isfinite(place)], bins=10, range=(0.0, 1.0), density=True)
            axes.stairs(share, edges, label=metric.removesuffix("_s").upper())
        axes.axhline(1.0, color="0.6", linewidth=0.8)
        axes.set_title(part, fontsize=9)
    for axes in panels[len(found) :]:
        axes.axis("off")
    figure.supxlabel("place of the measured time in its predicted distribution", fontsize=9)
    panels[0].legend(fontsize=7, frameon=False)
    save(figure, target)


def plot_run(record: RunRecord, kv_blocks: int, title: str, target: Path) -> None:
    """Batch and queue, KV use and prefix hits, TTFT, and busy time by term, over simulated time."""
    from sim.results.series import run_series

    series, figure = run_series(record), new_figure(9.0, 9.0)
    batch, memory, latency, busy = figure.subplots(4, 1, sharex=True)
    time = series.start_s
    batch.plot(time, series.running, label="running")
    batch.plot(time, series.waiting, label="waiting", linestyle="--")
    batch.set_ylabel("requests per replica")
    memory.plot(time, 100 * series.kv_blocks_used / kv_blocks, label="KV blocks used")
    memory.plot(time, 100 * series.hit_rate, ".", label="prefix hits, of prompt tokens")
    memory.set_ylabel("%")
    memory.set_ylim(0, 105)
    latency.plot(time, series.ttft_p50_ms, ".", label="TTFT median")
    latency.plot(time, series.ttft_p99_ms, ".", label="TTFT P99, by arrival")
    latency.set_ylabel("ms")
    latency.set_yscale("log")
    total = sum(values.sum() for values in series.busy.values())
    used = {name: values for name, values in series.busy.items() if values.sum() > 0.002 * total}
    busy.stackplot(time, list(used.values()), labels=list(used), step="post")
    busy.set_ylabel("busy seconds per second")
    busy.set_xlabel("simulated time (s)")
    for axes in (batch, memory, latency, busy):
        # above the axes: inside, it hides the points of the first seconds
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, ncols=5, frameon=False, borderaxespad=0.1)
        axes.grid(alpha=0.3)
    batch.set_title(title, loc="left")
    save(figure, target)
