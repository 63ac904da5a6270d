"""Traces of OpenTelemetry's GenAI spans: OTLP as JSON, one export or one of each line, as a collector's file exporter writes it.

A span with gen_ai.usage.input_tokens and output_tokens (vLLM's and older clients' prompt_tokens and completion_tokens) is a call. It
arrives when its span starts. Calls of one gen_ai.conversation.id that do not overlap are a session: each follows the one before, after
the pause that was made. What is cached is not in a span: a later prompt of a session is taken to begin with what was said before.

Source: OpenTelemetry semantic conventions for generative AI, and OTLP/JSON (64-bit whole numbers as strings).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.workload.content import Grown
from sim.workload.lines import objects_of
from sim.workload.loader_options import DEFAULT, LoadOptions
from sim.workload.trace import Trace, TraceBuilder

PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
CONVERSATION = ("gen_ai.conversation.id", "session.id")


@dataclass(frozen=True, slots=True)
class _Span:
    where: str
    start_s: float
    end_s: float
    prompt: int
    output: int
    conversation: str | None


def load_otel(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """The trace. Raises UsageError naming the export and span that is wrong, or that there is no call in it."""
    builder, spans = TraceBuilder(path.name), sorted(_spans(path), key=lambda span: span.start_s)
    if not spans:
        raise UsageError(f"{path.name}: no span in it has {PROMPT[0]} and {OUTPUT[0]}")
    overlapping = _overlapping(spans)
    ends: dict[str, tuple[float, int]] = {}  # session -> (end of its last call, tokens said so far)
    for span in spans:
        session = span.conversation if span.conversation not in overlapping else None
        before = ends.get(session) if session is not None else None
        builder.add(
            span.where,
            arrival_s=span.start_s - spans[0].start_s if before is None else None,
            think_s=span.start_s - before[0] if before else 0.0,
            recorded_s=span.start_s - spans[0].start_s,
            prompt_tokens=span.prompt,
            output_tokens=span.output,
            session_id=session,
            content=Grown(min(before[1], span.prompt)) if before else None,
        )
        if session is not None:
            ends[session] = span.end_s, span.prompt + span.output
    if overlapping:
        builder.note(f"{len(overlapping)} conversations have calls side by side: theirs arrive when they did, and share nothing")
    return builder.build()


def _overlapping(spans: list[_Span]) -> set[str | None]:
    """Conversations of which a call begins before the one before it has ended."""
    ends: dict[str, float] = {}
    found: set[str | None] = set()
    for span in spans:
        if span.conversation is not None:
            if span.start_s < ends.get(span.conversation, 0.0):
                found.add(span.conversation)
            ends[span.conversation] = max(span.end_s, ends.get(span.conversation, 0.0))
    return found


def _spans(path: Path) -> Iterator[_Span]:
    for place, export in objects_of(path):
        named = f"{path.name}: {place}: "
        for resource in _listed(export, "resourceSpans", named):
            for scope in _listed(resource, "scopeSpans", named):
                for i, span in enumerate(_listed(scope, "spans", named)):
                    where = f"{named}span {span.get('spanId', i)!s:.40}"
                    place_of = where.partition(": ")[2]
                    attributes = {str(each.get("key")): each.get("value") for each in _listed(span, "attributes", where)}
                    prompt, output = (_whole(attributes, names, where) for names in (PROMPT, OUTPUT))
                    if prompt is None or not output:  # no call, or one that failed
                        continue
                    start, end = (_seconds(span, name, where) for name in ("startTimeUnixNano", "endTimeUnixNano"))
                    if end < start:
                        raise UsageError(f"{where}: ends before it starts")
                    yield _Span(place_of, start, end, prompt, output, _text(attributes, CONVERSATION))


def _listed(holder: Mapping[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    value = holder.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise UsageError(f"{where.rstrip(': ')}: {name} must be a list of objects")
    return value


def _whole(attributes: Mapping[str, Any], names: tuple[str, ...], where: str) -> int | None:
    """A whole number, which OTLP writes as {"intValue": "12"}."""
    for name in names:
        if name in attributes:
            value = attributes[name]
            said = value.get("intValue", value.get("doubleValue")) if isinstance(value, dict) else value
            try:
                return int(str(said))
            except (TypeError, ValueError, OverflowError):
                raise UsageError(f"{where}: {name} must be a whole number") from None
    return None


def _text(attributes: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = attributes.get(name)
        if isinstance(value, dict) and value.get("stringValue"):
            return str(value["stringValue"])
    return None


def _seconds(span: Mapping[str, Any], name: str, where: str) -> float:
    try:
        nanoseconds = int(span.get(name) or "")
    except (TypeError, ValueError):
        raise UsageError(f"{where}: {name} must be a whole number of nanoseconds") from None
    if not 0 <= nanoseconds < 1 << 63:
        raise UsageError(f"{where}: {name} is no time: {nanoseconds}")
    return nanoseconds * 1e-9
