"""WEKA's agent traces (kv-cache-tester): a session of one coding agent an object, its calls with hashes of their prompts' blocks.

    {"id": "s1", "block_size": 64, "requests": [{"t": 0.0, "type": "s", "in": 900, "out": 40, "hash_ids": [1, 2], "api_time": 2.1}]}

`t` is seconds from the session's start, `in` and `out` are tokens. A call with `requests` of its own is a subagent: a session beside, whose
calls come at their times. Hashes are a session's own unless `hash_id_scope` is global. The file is one object, a list, or JSON lines;
sessions start together. Further fields (models, types, stop reasons) say nothing of the load.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sim.errors import UsageError
from sim.workload.jsonl import block_hashes
from sim.workload.lines import field, number, objects_of, text, whole_number
from sim.workload.loader_options import DEFAULT, LoadOptions
from sim.workload.trace import Trace, TraceBuilder

BLOCK_TOKENS = 64


class _Call(NamedTuple):
    at_s: float
    session: str
    place: int
    where: str
    record: dict[str, Any]
    block: int
    scope: str


def load_weka(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """The trace. Raises UsageError naming the session and call that is wrong."""
    builder = TraceBuilder(path.name)
    calls = [call for place, session in objects_of(path) for call in _calls(f"{path.name}: {place}", session)]
    ends: dict[str, float] = {}
    for call in sorted(calls, key=lambda call: (call.at_s, call.session, call.place)):
        named = f"{path.name}: {call.where}"
        prompt = whole_number(field(call.record, "in", named), "in", named)
        output = max(1, whole_number(field(call.record, "out", named), "out", named))
        later = call.session in ends and call.at_s >= ends[call.session]
        builder.add(
            call.where,
            arrival_s=None if later else call.at_s,
            think_s=call.at_s - ends[call.session] if later else 0.0,
            recorded_s=call.at_s,
            prompt_tokens=prompt,
            output_tokens=output,
            session_id=call.session if later or call.session not in ends else None,
            content=_content(call, prompt, named),
        )
        took = call.record.get("api_time", 0.0)
        ends[call.session] = max(ends.get(call.session, 0.0), call.at_s + number(0.0 if took is None else took, "api_time", named))
    return builder.build()


def _content(call: _Call, prompt: int, named: str) -> Any:
    """Blocks of the prompt, which the ids must cover."""
    ids = call.record.get("hash_ids")
    if not ids:
        return None
    if not isinstance(ids, list):
        raise UsageError(f"{named}: hash_ids must be a list")
    return block_hashes([f"{call.scope}{each}" for each in ids], call.block, prompt, named)


def _calls(named: str, session: dict[str, Any], parent: str = "", start_s: float = 0.0, scope: str | None = None) -> Iterator[_Call]:
    """Calls of a session and of its subagents, times from the start of the trace."""
    name = f"{parent}{text(session.get('id', session.get('agent_id', named)), 'id', named)}"
    block = whole_number(session.get("block_size", BLOCK_TOKENS), "block_size", named)
    scope = scope if scope is not None else "" if session.get("hash_id_scope") == "global" else f"{name}/"
    requests = session.get("requests")
    if not isinstance(requests, list) or not all(isinstance(each, dict) for each in requests):
        raise UsageError(f"{named}: requests must be a list of objects")
    for i, record in enumerate(requests):
        where = f"{named}: request {i}"
        at_s = start_s + number(field(record, "t", where), "t", where)
        if "requests" in record:
            inner = {"block_size": block, **record}
            begin = start_s if _absolute(record) else at_s
            yield from _calls(where, inner, f"{name}/{i}/", begin, scope)
        else:
            yield _Call(at_s, name, i, where.partition(": ")[2] if ": " in where else where, record, block, scope)


def _absolute(record: dict[str, Any]) -> bool:
    """Whether a subagent's own times count from the session's start, as the agent's do: its first is not before the subagent's."""
    first = record["requests"][0].get("t") if isinstance(record["requests"], list) and record["requests"] else None
    return isinstance(first, int | float) and isinstance(record.get("t"), int | float) and first >= record["t"] > 0
