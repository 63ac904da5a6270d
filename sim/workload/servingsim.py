"""LLMServingSim traces: JSON lines, single calls or agent sessions.

    {"input_toks": 299, "output_toks": 349, "arrival_time_ns": 1046926808, "input_tok_ids": [...], "output_tok_ids": [...]}
    {"session_id": "s", "arrival_time_ns": 0, "sub_requests": [{"input_toks": 10, "output_toks": 5, "tool_duration_ns": 1000000}, ...]}

Source: the LLMServingSim repository. A sub-request's prompt is its whole context; it is sent `tool_duration_ns` after the one before it
has finished. Without token ids, it is taken to repeat as much of the previous prompt and output as it is long.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.workload.content import Content, Grown, TokenIds
from sim.workload.jsonl import token_ids
from sim.workload.lines import field, number, numbered_objects, text, whole_number
from sim.workload.options import DEFAULT, LoadOptions
from sim.workload.trace import Trace, TraceBuilder


def load_servingsim(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """The trace. Raises UsageError naming the line that is wrong."""
    builder = TraceBuilder(path.name)
    for line, record in numbered_objects(path):
        named = f"{path.name}: line {line}"
        arrival_s = number(field(record, "arrival_time_ns", named), "arrival_time_ns", named) / 1e9
        if "sub_requests" in record:
            _add_session(builder, f"line {line}", record, arrival_s)
        else:
            prompt, output, content = _call(record, named)
            builder.add(f"line {line}", arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output, content=content)
    return builder.build()


def _add_session(builder: TraceBuilder, where: str, record: dict[str, Any], arrival_s: float) -> None:
    named = f"{builder.name}: {where}"
    session = text(field(record, "session_id", named), "session_id", named)
    calls = record["sub_requests"]
    if not isinstance(calls, list) or not calls or not all(isinstance(call, dict) for call in calls):
        raise UsageError(f"{named}: sub_requests must be a list of objects, not empty")
    pause_s, context = 0.0, 0
    for turn, call in enumerate(calls):
        place = f"{named}: sub_requests[{turn}]"
        prompt, output, content = _call(call, place)
        if content is None and turn:
            content = Grown(min(context, prompt))
        builder.add(
            f"{where}: sub_requests[{turn}]",
            arrival_s=None if turn else arrival_s,
            prompt_tokens=prompt,
            output_tokens=output,
            session_id=session,
            turn=turn,
            think_s=pause_s,
            content=content,
        )
        context = prompt + output
        pause_s = number(call.get("tool_duration_ns", 0), "tool_duration_ns", place) / 1e9


def _call(record: dict[str, Any], where: str) -> tuple[int, int, Content | None]:
    prompt = whole_number(field(record, "input_toks", where), "input_toks", where)
    output = whole_number(field(record, "output_toks", where), "output_toks", where)
    if "input_tok_ids" not in record:
        return prompt, output, None
    ids = token_ids(record["input_tok_ids"], "input_tok_ids", where)
    if len(ids) != prompt:
        raise UsageError(f"{where}: input_toks is {prompt}, but there are {len(ids)} token ids")
    generated = token_ids(record["output_tok_ids"], "output_tok_ids", where) if "output_tok_ids" in record else array("i")
    return prompt, output, TokenIds(ids + generated[:output])
