"""The table people paste into issues, in the layout of `vllm bench serve`, with interval columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from sim.results.metrics import ENGINE_FIGURES, FIGURES, KV_BLOCKS, LATENCIES, Figure

WIDTH = 50
STATISTICS = {"mean": "Mean", "median": "Median", "p90": "P90", "p95": "P95", "p99": "P99"}
BY_DEFAULT = ("mean", "median", "p99")  # statistics that `vllm bench serve` prints unasked
Interval = tuple[float, float]


def benchmark_table(
    summary: Mapping[str, float | int],
    noise: Mapping[str, Interval],
    rates: Mapping[str, Interval] | None = None,
    kv_blocks: int | None = None,
    whole: bool = True,
) -> str:
    """The table, or of it the statistics that `vllm bench serve` prints unasked.

    `noise` and `rates` hold 90 % intervals by summary key: from this run's own noise, and over draws of the rates.
    """
    head = f"{'90 % intervals from':<40} {'':<10} {'run noise':<13}" + (" rates" if rates else "")
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}", head.rstrip()]
    statistics = {key: word for key, word in STATISTICS.items() if whole or key in BY_DEFAULT}

    def line(figure: Figure) -> None:
        if not figure.label or figure.key not in summary or (figure.scale == KV_BLOCKS and not kv_blocks):
            return
        scale = 100.0 / kv_blocks if figure.scale == KV_BLOCKS and kv_blocks else figure.scale
        value = summary[figure.key] if figure.scale == 1.0 else scale * summary[figure.key]
        cells = [_interval(found.get(figure.key), scale, value) for found in (noise, rates) if found is not None]
        lines.append(f"{figure.label:<40} {_value(value):<10} {cells[0]:<13} {' '.join(cells[1:])}".rstrip())

    for figure in FIGURES:
        line(figure)
    for name, (title, short) in LATENCIES.items():
        if f"mean_{name}_ms" not in summary:
            continue
        lines.append(f"{title:-^{WIDTH}}")
        for prefix, word in statistics.items():
            line(Figure(f"{prefix}_{name}_ms", None, f"{word} {short} (ms):"))
    if whole:
        lines.append(f"{'Engine':-^{WIDTH}}")
        for figure in ENGINE_FIGURES:
            line(figure)
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def _value(value: float | int) -> str:
    if isinstance(value, int):
        return str(value)
    return "n/a" if math.isnan(value) else f"{value:.2f}"


def _interval(interval: Interval | None, scale: float, value: float) -> str:
    if interval is None or interval[0] == interval[1]:
        return ""  # nothing is unknown about it
    low, high = scale * interval[0], scale * interval[1]
    return f"[{_bound(low, value, math.floor)}-{_bound(high, value, math.ceil)}]"


def _bound(bound: float, value: float, outward: Callable[[float], int]) -> str:
    """Rounded outward where rounding would pass the value: a figure inside its interval is printed inside it."""
    text, side = _short(bound), -1 if outward is math.floor else 1
    if text[-1] in "kM" or not bound or side * (bound - value) < 0 or side * (float(text) - value) >= 0:
        return text
    step = 10.0 ** (math.floor(math.log10(abs(bound))) - 2)
    return _short(step * outward(bound / step))


def _short(value: float) -> str:
    """Three digits or more, in five characters: two columns of intervals fit beside vLLM's table in 80 columns."""
    if abs(value) >= 99999.5:
        return f"{value / 1e3:.0f}k" if abs(value) < 999.5e3 else f"{value / 1e6:.3g}M"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 1 else f"{round(value, 3):g}"
