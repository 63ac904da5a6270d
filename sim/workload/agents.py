"""Recorded agent sessions: JSON lines of session_id and turns with prompt_tokens, completion_tokens and completed_at.

Only completion times were recorded, and the gaps between them hold the next call's own latency. So a session starts where its first call
completed, relative to the earliest session, and each later call follows the previous one's finish at once: add think time to taste.
A prompt is taken to repeat as much of the previous prompt and completion as it is long, which bounds reuse from above.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.workload.content import Grown
from sim.workload.lines import field, numbered_objects, text, whole_number
from sim.workload.loader_options import DEFAULT, LoadOptions
from sim.workload.trace import Trace, TraceBuilder


def load_agents(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """The sessions, in order of their starts. Raises UsageError naming the line that is wrong."""
    sessions = []
    for line, record in numbered_objects(path):
        named = f"{path.name}: line {line}"
        turns = field(record, "turns", named)
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
            raise UsageError(f"{named}: turns must be a list of objects, not empty")
        started = _stamp(field(turns[0], "completed_at", f"{named}: turns[0]"), f"{named}: turns[0]")
        sessions.append((started, line, text(field(record, "session_id", named), "session_id", named), turns))
    sessions.sort(key=lambda session: session[:2])
    builder = TraceBuilder(path.name)
    for started, line, session, turns in sessions:
        _add(builder, line, session, turns, (started - sessions[0][0]).total_seconds())
    builder.note("calls follow the previous one's finish at once: completion times alone do not tell think time")
    return builder.build()


def _add(builder: TraceBuilder, line: int, session: str, turns: list[dict[str, Any]], start_s: float) -> None:
    context = 0
    for turn, call in enumerate(turns):
        where = f"line {line}: turns[{turn}]"
        named = f"{builder.name}: {where}"
        prompt = whole_number(field(call, "prompt_tokens", named), "prompt_tokens", named)
        output = whole_number(field(call, "completion_tokens", named), "completion_tokens", named)
        builder.add(
            where,
            arrival_s=None if turn else start_s,
            prompt_tokens=prompt,
            output_tokens=output,
            session_id=session,
            turn=turn,
            content=Grown(min(context, prompt)) if turn else None,
        )
        context = prompt + output


def _stamp(value: object, where: str) -> datetime:
    try:
        stamp = datetime.fromisoformat(str(value))
    except ValueError:
        raise UsageError(f"{where}: completed_at is not a time: {str(value)[:40]!r}") from None
    if stamp.tzinfo is None:
        raise UsageError(f"{where}: completed_at lacks its time zone: {str(value)[:40]!r}")
    return stamp
