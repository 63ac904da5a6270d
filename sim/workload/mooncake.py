"""Mooncake traces: JSON lines of timestamp (ms), input_length, output_length and hash_ids of 512-token prompt blocks.

Source: the Mooncake repository's FAST'25 trace release. An id stands for a block and all before it; the last block may be partial, so
a hit never reaches beyond the prompt. Arrivals of the conversation trace are bucketed at 3 s.
"""

from __future__ import annotations

from pathlib import Path

from sim.workload.jsonl import block_hashes
from sim.workload.lines import field, number, numbered_objects, whole_number
from sim.workload.options import DEFAULT, LoadOptions
from sim.workload.trace import Trace, TraceBuilder

BLOCK_TOKENS = 512


def load_mooncake(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """The trace. Raises UsageError naming the line that is wrong."""
    builder = TraceBuilder(path.name)
    for line, record in numbered_objects(path):
        named = f"{path.name}: line {line}"
        prompt = whole_number(field(record, "input_length", named), "input_length", named)
        content = block_hashes(record["hash_ids"], BLOCK_TOKENS, prompt, named) if "hash_ids" in record else None
        builder.add(
            f"line {line}",
            arrival_s=number(field(record, "timestamp", named), "timestamp", named) / 1e3,
            prompt_tokens=prompt,
            output_tokens=whole_number(field(record, "output_length", named), "output_length", named),
            content=content,
        )
    return builder.build()
