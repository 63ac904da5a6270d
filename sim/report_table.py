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
    ("Failed requests:", "failed"),
    ("  turned away, full queue:", "rejected_full_queue"),
    ("  turned away, TTFT goal:", "rejected_ttft_goal"),
    ("  turned away, token bucket:", "rejected_token_bucket"),
    ("Benchmark duration (s):", "duration"),
    ("Total input tokens:", "total_input_tokens"),
    ("Total generated tokens:", "total_output_tokens"),
    ("Request throughput (req/s):", "request_throughput"),
    ("Request goodput (req/s):", "request_goodput"),
    ("Output token throughput (tok/s):", "output_throughput"),
    ("Peak output token throughput (tok/s):", "max_output_tokens_per_s"),
    ("Peak concurrent requests:", "max_concurrent_requests"),
    ("Total token throughput (tok/s):", "total_token_throughput"),
)
_ENGINE = (
    ("Mean wait to be scheduled (ms):", "mean_wait_ms"),
    ("P99 wait to be scheduled (ms):", "p99_wait_ms"),
    ("Mean running requests:", "mean_running"),
    ("Peak waiting requests:", "max_waiting"),
    ("Peak KV use (%):", "max_kv_percent"),
    ("Prefix cache hit rate (%):", "prefix_hit_percent"),
    ("KV blocks found in HBM (%):", "kv_hit_percent_hbm"),
    ("KV blocks found in host RAM (%):", "kv_hit_percent_host"),
    ("KV blocks found on disk (%):", "kv_hit_percent_disk"),
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
    percent = _percentages(summary, kv_blocks)
    shown = dict(summary) | {name: factor * summary[key] for name, (key, factor) in percent.items()}
    noise, rates = (
        {**found, **{name: (factor * found[key][0], factor * found[key][1]) for name, (key, factor) in percent.items() if key in found}}
        for found in (noise, rates or {})
    )
    head = f"{'90 % intervals from':<40} {'':<10} {'run noise':<13}" + (" rates" if rates else "")
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}", head.rstrip()]

    def line(label: str, key: str) -> None:
        if key not in shown:
            return
        cells = [_interval(noise.get(key))] + ([_interval(rates.get(key))] if rates else [])
        lines.append(f"{label:<40} {_value(shown[key]):<10} {cells[0]:<13} {' '.join(cells[1:])}".rstrip())

    for label, key in _COUNTS:
        line(label, key)
    for name, (title, short) in _TITLES.items():
        if f"mean_{name}_ms" not in shown:
            continue
        lines.append(f"{title:-^{WIDTH}}")
        for prefix, word in (("mean", "Mean"), ("median", "Median"), ("p90", "P90"), ("p95", "P95"), ("p99", "P99")):
            line(f"{word} {short} (ms):", f"{prefix}_{name}_ms")
    lines.append(f"{'Engine':-^{WIDTH}}")
    for label, key in _ENGINE:
        line(label, key)
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def _percentages(summary: Mapping[str, float | int], kv_blocks: int | None) -> dict[str, tuple[str, float]]:
    """Lines in per cent: name -> (the figure it is made of, factor)."""
    out = {"prefix_hit_percent": ("prefix_cache_hit_rate", 100.0), "busy_percent": ("busy_fraction", 100.0)}
    out |= {key.replace("rate", "percent"): (key, 100.0) for key in summary if key.startswith("kv_hit_rate_")}
    if kv_blocks:
        out["max_kv_percent"] = ("max_kv_blocks_used", 100.0 / kv_blocks)
    return {name: (key, factor) for name, (key, factor) in out.items() if key in summary}


def _value(value: float | int) -> str:
    if isinstance(value, int):
        return str(value)
    return "n/a" if math.isnan(value) else f"{value:.2f}"


def _interval(interval: Interval | None) -> str:
    if interval is None or interval[0] == interval[1]:
        return ""  # nothing is unknown about it
    return f"[{_short(interval[0])}-{_short(interval[1])}]"


def _short(value: float) -> str:
    """Three significant digits: two columns of intervals fit beside vLLM's table in 80 columns."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
