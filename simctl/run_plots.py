"""A run over time, as a picture. matplotlib is imported only through simctl.plots."""

from __future__ import annotations

from pathlib import Path

from sim.runlog import RunRecord
from sim.series import run_series
from simctl.plots import new_figure, save


def plot_run(record: RunRecord, kv_blocks: int, title: str, target: Path) -> None:
    """Batch and queue, KV use and prefix hits, TTFT, and the bill by term, over simulated time."""
    series = run_series(record)
    figure = new_figure(9.0, 9.0)
    batch, memory, latency, bill = figure.subplots(4, 1, sharex=True)
    time = series.start_s
    batch.plot(time, series.running, label="running")
    batch.plot(time, series.waiting, label="waiting")
    batch.set_ylabel("requests per replica")
    memory.plot(time, 100 * series.kv_blocks_used / kv_blocks, label="KV blocks used")
    memory.plot(time, 100 * series.hit_rate, ".", label="prefix hits, of prompt tokens")
    memory.set_ylabel("%")
    memory.set_ylim(0, 105)
    latency.plot(time, series.ttft_p50_ms, ".", label="TTFT median")
    latency.plot(time, series.ttft_p99_ms, ".", label="TTFT P99, by arrival")
    latency.set_ylabel("ms")
    latency.set_yscale("log")
    used = {name: values for name, values in series.bill.items() if values.sum() > 0.002 * series.bill_total}
    bill.stackplot(time, list(used.values()), labels=list(used), step="post")
    bill.set_ylabel("busy seconds per second")
    bill.set_xlabel("simulated time (s)")
    for axes in (batch, memory, latency, bill):
        # above the axes: inside, it hides the points of the first seconds
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, ncols=5, frameon=False, borderaxespad=0.1)
        axes.grid(alpha=0.3)
    batch.set_title(title, loc="left")
    save(figure, target)
