"""The Azure LLM inference trace format: CSV of TIMESTAMP, ContextTokens, GeneratedTokens.

Source: the AzurePublicDataset repository (2023 code and conversation traces, and the later week-long ones, which say
the same columns). Timestamps are wall-clock with seven decimals (100 ns), read here as whole ticks so that no digit is
lost.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from sim.workload.lines import csv_int, numbered_lines
from sim.workload.loader_options import DEFAULT, LoadOptions
from sim.workload.trace import Trace, TraceBuilder

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:?00)?")
_TICKS_PER_S = 10**9


def load_azure(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """The trace, its first row arriving at 0 s. Raises UsageError naming the line that is wrong."""
    builder = TraceBuilder(path.name)
    days: dict[str, int] = {}
    lines = numbered_lines(path)
    number, header = next(lines, (1, ""))
    if tuple(cell.strip() for cell in header.split(",")) != COLUMNS:
        raise builder.error(f"line {number}", f"expected the header {','.join(COLUMNS)}, got {header[:60]!r}")
    origin: int | None = None
    for number, line in lines:
        where = f"line {number}"
        cells = line.split(",")
        if len(cells) != 3:
            raise builder.error(where, f"expected 3 cells, got {len(cells)}")
        ticks = _ticks(cells[0].strip(), days)
        if ticks is None:
            raise builder.error(where, f"not a timestamp: {cells[0][:40]!r}")
        if origin is None:
            origin = ticks
        if ticks < origin:
            raise builder.error(where, f"arrivals out of order: {cells[0].strip()} lies before the first row")
        builder.add(
            where,
            arrival_s=(ticks - origin) / _TICKS_PER_S,
            prompt_tokens=csv_int(cells[1], COLUMNS[1], f"{path.name}: {where}"),
            output_tokens=csv_int(cells[2], COLUMNS[2], f"{path.name}: {where}"),
        )
    return builder.build()


def _ticks(stamp: str, days: dict[str, int]) -> int | None:
    """Nanoseconds since a fixed day, or None when it is no timestamp. `days` caches parsed dates."""
    match = _STAMP.fullmatch(stamp)
    if not match:
        return None
    date, hours, minutes, seconds, fraction = match.groups()
    if date not in days:
        try:
            days[date] = datetime.fromisoformat(date).toordinal()
        except ValueError:
            return None
    if int(hours) > 23 or int(minutes) > 59 or int(seconds) > 60:
        return None
    whole = ((days[date] * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * _TICKS_PER_S + int((fraction or "0").ljust(9, "0"))
