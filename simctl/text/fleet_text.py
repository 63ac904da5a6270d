"""The tables of a fleet (sim.results.fleet_tables) for terminals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simctl.text.layout import aligned, fill

MOST = 32  # replicas that are printed
# key, heading, decimals, scale
REPLICAS = (
    ("replica", "replica", 0, 1.0),
    ("pool", "pool", 0, 1.0),
    ("requests", "requests", 0, 1.0),
    ("mean_ttft_ms", "mean TTFT", 1, 1.0),
    ("p90_ttft_ms", "P90 (ms)", 1, 1.0),
    ("prefix_cache_hit_rate", "hits (%)", 1, 100.0),
    ("busy_fraction", "busy (%)", 1, 100.0),
    ("max_waiting", "queue", 0, 1.0),
)
PREFILLED = ("prefill_tokens", "prefilled", 0, 1.0)
DECISIONS = (
    ("decision", "decision", 0, 1.0),
    ("requests", "requests", 0, 1.0),
    ("mean_ttft_ms", "mean TTFT", 1, 1.0),
    ("p90_ttft_ms", "P90", 1, 1.0),
    ("p99_ttft_ms", "P99 (ms)", 1, 1.0),
)


def fleet_lines(tables: Mapping[str, Any], gpu_hours: float) -> list[str]:
    """All tables of several replicas; of one, how many requests waited very long, where any did."""
    replicas = tables["replicas"]
    if len(replicas) == 1:
        return _long_tail(tables["long_tail"])
    busiest = sorted(sorted(replicas, key=lambda row: -row["requests"])[:MOST], key=lambda row: row["replica"])
    apart = any(not row["requests"] and row.get("prefill_tokens") for row in replicas)  # a pool that only reads prompts
    lines = ["", *_table(busiest, (*REPLICAS, PREFILLED) if apart else REPLICAS)]
    if len(busiest) < len(replicas):
        lines.append(f"the {len(busiest)} of {len(replicas)} replicas with most requests")
    if len(tables["decisions"]) > 1:
        lines += ["", *_table(tables["decisions"], DECISIONS)]
    index = f"hotspot index {tables['hotspot_index']:.2f} (requests in flight, most of any replica over their mean)"
    return [*lines, "", *_long_tail(tables["long_tail"]), fill(f"{index}; {gpu_hours:.3g} GPU-hours", later="  ")]


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, str, int, float]]) -> list[str]:
    there = [column for column in columns if column[0] in rows[0]]
    cells = [[_cell(row[key], digits, scale) for key, _, digits, scale in there] for row in rows]
    return aligned([heading for _, heading, _, _ in there], cells, gap=2 if len(there) < 8 else 1)


def _cell(value: Any, digits: int, scale: float) -> str:
    if isinstance(value, str):
        return value
    return "n/a" if value != value else f"{scale * value:,.{digits}f}"


def _long_tail(counts: Mapping[str, int]) -> list[str]:
    """Requests that waited longer than each threshold, where any did."""
    if not any(counts.values()):
        return []
    return [fill("TTFT above " + ", ".join(f"{seconds} s: {count:,}" for seconds, count in counts.items()), later="  ")]
