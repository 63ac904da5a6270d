"""The trace formats simctl reads, by name. Each loader is imported only when it is used."""

from __future__ import annotations

import importlib
from pathlib import Path

from sim.errors import UsageError
from sim.workload.trace import Trace

# name -> (module, function, one line of help)
FORMATS: dict[str, tuple[str, str, str]] = {
    "azure": ("sim.workload.azure", "load_azure", "Azure LLM inference trace, CSV"),
    "jsonl": ("sim.workload.jsonl", "load_jsonl", "simctl's own JSON lines"),
}


def load_trace(path: Path, trace_format: str) -> Trace:
    """Read a trace. Raises UsageError for an unknown format or a malformed line (named), OSError when it cannot be
    read.
    """
    if trace_format not in FORMATS:
        raise UsageError(f"unknown trace format {trace_format!r}; known: {', '.join(FORMATS)}")
    module, function, _ = FORMATS[trace_format]
    trace: Trace = getattr(importlib.import_module(module), function)(path)
    return trace
