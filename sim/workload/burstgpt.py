"""BurstGPT traces: CSV with the columns Timestamp (s), Request tokens, Response tokens and, in later releases, Session ID.

Source: the BurstGPT repository. A response of 0 tokens is a failed call: it is left out, and the trace says how many were. Arrivals count
from the first row. A session's later prompt is taken to repeat as much of what was said before as it is long.
"""

from __future__ import annotations

from pathlib import Path

from sim.workload.content import Grown
from sim.workload.lines import csv_cells, csv_float, csv_int, numbered_lines
from sim.workload.loader_options import DEFAULT, LoadOptions
from sim.workload.trace import Trace, TraceBuilder

SESSION = "Session ID"
COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


def load_burstgpt(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """The trace. Raises UsageError naming the line that is wrong."""
    builder = TraceBuilder(path.name)
    lines = numbered_lines(path)
    number, header = next(lines, (1, ""))
    names = [cell.strip() for cell in csv_cells(header, f"{path.name}: line {number}")]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise builder.error(f"line {number}", f"the header lacks {missing[0]!r}; it needs {', '.join(COLUMNS)}")
    places = [names.index(name) for name in COLUMNS]
    session_at = names.index(SESSION) if SESSION in names else None
    said: dict[str, int] = {}  # session -> tokens said so far
    origin: float | None = None
    failed = 0
    for number, line in lines:
        where, named = f"line {number}", f"{path.name}: line {number}"
        cells = csv_cells(line, named)
        if len(cells) != len(names):
            raise builder.error(where, f"expected {len(names)} cells, got {len(cells)}")
        stamp, prompt, output = (cells[place].strip() for place in places)
        arrival = csv_float(stamp, COLUMNS[0], named)
        if csv_int(output, COLUMNS[2], named) == 0:
            failed += 1
            continue
        origin = arrival if origin is None else origin
        prompt_n, output_n = csv_int(prompt, COLUMNS[1], named), csv_int(output, COLUMNS[2], named)
        session = (cells[session_at].strip() or None) if session_at is not None else None
        builder.add(
            where,
            arrival_s=arrival - origin,
            prompt_tokens=prompt_n,
            output_tokens=output_n,
            session_id=session,
            content=Grown(min(said[session], prompt_n)) if session in said else None,
        )
        if session is not None:
            said[session] = prompt_n + output_n
    if failed:
        builder.note(f"{failed} failed calls (no response tokens) left out")
    return builder.build()
