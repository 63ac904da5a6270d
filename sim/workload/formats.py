"""The trace formats simctl reads, by name. Each loader is imported only when it is used."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import UsageError
from sim.workload.loader_options import DEFAULT, LoadOptions

if TYPE_CHECKING:
    from sim.workload.trace import Trace

REPLAYS = ("open", "closed")  # how recorded calls may be sent (Trace.replayed)
# name -> (module, function, one line of help)
FORMATS: dict[str, tuple[str, str, str]] = {
    "jsonl": ("sim.workload.jsonl", "load_jsonl", "simctl's own JSON lines, with sessions and prefix identity"),
    "azure": ("sim.workload.azure", "load_azure", "Azure LLM inference trace, CSV"),
    "mooncake": ("sim.workload.mooncake", "load_mooncake", "Mooncake JSON lines with block hashes, and Qwen's and AIPerf's variants of it"),
    "burstgpt": ("sim.workload.burstgpt", "load_burstgpt", "BurstGPT CSV, with sessions where it has them"),
    "sharegpt": ("sim.workload.texts", "load_sharegpt", "ShareGPT JSON: first question and answer; no arrival times"),
    "sharegpt-sessions": ("sim.workload.texts", "load_sharegpt_sessions", "ShareGPT JSON: whole conversations as sessions"),
    "custom": ("sim.workload.texts", "load_custom", "vLLM's custom JSON lines of prompts; no arrival times"),
    "servegen": ("sim.workload.servegen", "load_servegen", "ServeGen client files (a folder): distributions to draw from"),
    "log": ("calibrate.logs.read", "load_log", "a benchmark's result, known by its content, or a CSV of one row a request"),
    "otel": (
        "sim.workload.otel",
        "load_otel",
        "OpenTelemetry's GenAI spans, OTLP as JSON: calls by their start, conversations as sessions",
    ),
    "weka": (
        "sim.workload.weka",
        "load_weka",
        "WEKA's agent traces, JSON: sessions of calls with hashes of 64-token blocks, subagents beside",
    ),
    "agents": ("sim.workload.agents", "load_agents", "recorded agent sessions, JSON lines of turns"),
}
# what some formats alone leave open: option -> those formats
OPEN = {
    "prefix_block": ("mooncake", "log"),
    "time_unit": ("mooncake",),
    "chars_per_token": ("mooncake", "custom", "sharegpt", "sharegpt-sessions"),
}
HEAD = 2**16  # characters
# how a file begins -> its format, or what to do with one that none reads
SIGNS: dict[str, str] = {
    r'"resource_?[sS]pans"': "otel",
    r'"traceID".*"operationName"|"operationName".*"traceID"': "it looks like Jaeger's: export the spans as OTLP JSON, which otel reads",
    r'"requests"\s*:\s*\[[^]]*"in"\s*:': "weka",
    r'"turns"\s*:\s*\[\s*\{[^}]*"completed_at"': "agents",
    r'"arrival_time_ns"': "it looks like LLMServingSim's: write arrival_time_ns / 1e9 as arrival_s, and its tokens as prompt_token_ids",
    r'"hash_ids"|"input_length"|"text_input"': "mooncake",
    r'"conversations"\s*:\s*\[': "sharegpt",
    r"^\ufeff?TIMESTAMP,ContextTokens": "azure",
    r"^\ufeff?Timestamp,(Session ID,)?.*Request tokens": "burstgpt",
    r'"ttfts"\s*:\s*\[': "log",
    r'^\ufeff?\s*\{[^{}]*"prompt"\s*:': "custom",
}


def load_trace(path: Path, trace_format: str, options: LoadOptions = DEFAULT) -> Trace:
    """Read a trace. Raises UsageError for an unknown format or a malformed line (named), OSError when it cannot be read."""
    if trace_format not in FORMATS:
        raise UsageError(f"unknown trace format {trace_format!r}; known: {', '.join(FORMATS)}")
    if path.is_dir() and trace_format != "servegen":
        raise UsageError(f"{path.name}: is a folder; only servegen traces are")
    for name, formats in OPEN.items():
        if getattr(options, name) is not None and trace_format not in formats:
            raise UsageError(f"{path.name}: {name.replace('_', '-')} is for {', '.join(formats)}; {trace_format} leaves nothing open there")
    module, function, _ = FORMATS[trace_format]
    try:
        trace: Trace = getattr(importlib.import_module(module), function)(path, options)
    except UsageError as error:
        hint = _looks_like(path, trace_format)
        raise UsageError(f"{error}; {hint}") if hint else error from None
    return trace


def format_of(path: Path) -> str:
    """The format that a file's beginning shows; simctl's own where it shows none. OSError when it cannot be read."""
    if path.is_dir():
        return "servegen"
    what = _sign(path)
    return what if what in FORMATS else "jsonl"


def _sign(path: Path) -> str:
    """What of SIGNS a file begins like; nothing where that is none."""
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.read(HEAD)
    return next((what for sign, what in SIGNS.items() if re.search(sign, head)), "")


def _looks_like(path: Path, trace_format: str) -> str:
    """What a file that could not be read is, by how it begins; nothing where that is not known, or is the format it was read as."""
    what = "" if path.is_dir() else _sign(path)
    return "" if what == trace_format else f"it looks like --trace-format {what}" if what in FORMATS else what
