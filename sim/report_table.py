"""The table people paste into issues, in the layout of `vllm bench serve`, with interval columns."""

from __future__ import annotations

import math
from collections.abc import Mapping

WIDTH = 50
_TITLES = {
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-token Latency", "ITL"),
    "e2el": ("End-to-end Latency", "E2EL"),
}
_COUNTS = (
    ("Successful requests:", "completed"),
    ("Benchmark duration (s):", "duration"),
    ("Total input tokens:", "total_input_tokens"),
    ("Total generated tokens:", "total_output_tokens"),
    ("Request throughput (req/s):", "request_throughput"),
    ("Request goodput (req/s):", "request_goodput"),
    ("Output token throughput (tok/s):", "output_throughput"),
    ("Total token throughput (tok/s):", "total_token_throughput"),
)
_ENGINE = (
    ("Mean queue time (ms):", "mean_queue_ms"),
    ("P99 queue time (ms):", "p99_queue_ms"),
    ("Mean running requests:", "mean_running"),
    ("Peak waiting requests:", "max_waiting"),
    ("Peak KV use (%):", "max_kv_percent"),
    ("Prefix cache hit rate (%):", "prefix_hit_percent"),
    ("Preemptions:", "preemptions"),
    ("Iterations:", "iterations"),
    ("Busy time (%):", "busy_percent"),
)
Interval = tuple[float, float]


def benchmark_table(
    summary: Mapping[str, float | int],
    noise: Mapping[str, Interval],
    rates: Mapping[str, Interval] | None = None,
    kv_blocks: int | None = None,
) -> str:
    """The table. `noise` and `rates` hold 90 % intervals by summary key: from this run's own spread, and over draws of the rates."""
    shown = dict(summary)
    shown["prefix_hit_percent"] = 100 * shown["prefix_cache_hit_rate"]
    shown["busy_percent"] = 100 * shown["busy_fraction"]
    if kv_blocks:
        shown["max_kv_percent"] = 100 * shown["max_kv_blocks_used"] / kv_blocks
    head = f"{'':<40} {'':<10} {'90 % run noise':<24}" + (" 90 % rates" if rates else "")
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}", head.rstrip()]

    def line(label: str, key: str) -> None:
        if key not in shown:
            return
        cells = [_interval(noise.get(key))] + ([_interval(rates.get(key))] if rates else [])
        lines.append(f"{label:<40} {_value(shown[key]):<10} {cells[0]:<24} {' '.join(cells[1:])}".rstrip())

    for label, key in _COUNTS:
        line(label, key)
    for name, (title, short) in _TITLES.items():
        lines.append(f"{title:-^{WIDTH}}")
        for prefix, word in (("mean", "Mean"), ("median", "Median"), ("p90", "P90"), ("p95", "P95"), ("p99", "P99")):
            line(f"{word} {short} (ms):", f"{prefix}_{name}_ms")
    lines.append(f"{'Engine':-^{WIDTH}}")
    for label, key in _ENGINE:
        line(label, key)
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def _value(value: float | int) -> str:
    if isinstance(value, int):
        return str(value)
    return "n/a" if math.isnan(value) else f"{value:.2f}"


def _interval(interval: Interval | None) -> str:
    return f"[{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
