"""Mooncake traces and their kin: JSON lines of timestamp, input_length (or text_input), output_length and hash_ids of prompt blocks.

    Mooncake         milliseconds, blocks of 512 tokens (the FAST'25 trace release); the conversation trace is bucketed at 3 s
    Qwen (Alibaba)   seconds, blocks of 16 tokens, with chat_id and turn
    AIPerf           Mooncake's, and text_input for input_length, session_id, and delay (ms after the answer before) for timestamp

An id stands for a block and all before it; the last block may be partial, so a hit never reaches beyond the prompt. Block size and time
unit are given (`prefix_block`, `time_unit`), or inferred and noted: the block size is the one at which every line's ids cover its prompt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.workload.content import Content, Grown, TokenIds
from sim.workload.jsonl import block_hashes
from sim.workload.lines import check_text, field, number, numbered_objects, text, whole_number
from sim.workload.loader_options import DEFAULT, LoadOptions
from sim.workload.texts import CHARS_PER_TOKEN, pseudo_tokens
from sim.workload.trace import Trace, TraceBuilder

BLOCK_TOKENS = 512
OTHER_SIZES = (16, 32, 64, 128, 256, 48, 8, 1)  # engines' and tools' block sizes, the commonest first
UNITS_S = {"s": 1.0, "ms": 1e-3}


def load_mooncake(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """The trace. Raises UsageError naming the line that is wrong, or what has to be said."""
    records, name = list(numbered_objects(path)), path.name
    builder = TraceBuilder(name)
    block = options.prefix_block or _block_size(name, records, builder)
    unit_s = UNITS_S[options.time_unit or _time_unit(name, records, block, builder)]
    said: dict[str, int] = {}  # session -> tokens said so far
    estimated = grown = False
    for line, record in records:
        named = f"{name}: line {line}"
        check_text(record, named)
        prompt, content, counted = _prompt(record, block, options.chars_per_token or CHARS_PER_TOKEN, named)
        estimated = estimated or counted
        output = whole_number(field(record, "output_length", named), "output_length", named)
        session = text(record["session_id"], "session_id", named) if record.get("session_id") is not None else None
        later = session is not None and session in said
        if session is not None:
            if later and content is None:
                content, prompt, grown = Grown(said[session]), said[session] + prompt, True
            said[session] = prompt + output
        waits = later and "timestamp" not in record
        builder.add(
            f"line {line}",
            arrival_s=None if waits else number(field(record, "timestamp", named), "timestamp", named) * unit_s,
            think_s=number(record.get("delay", 0.0), "delay", named) * 1e-3 if waits else 0.0,
            prompt_tokens=prompt,
            output_tokens=output,
            session_id=session,
            content=content,
        )
    if estimated:
        builder.note(f"token counts of texts estimated: {options.chars_per_token or CHARS_PER_TOKEN:g} characters to the token")
    if grown:
        builder.note("a session's later turns add their input to what was said, except where hash_ids name the whole prompt")
    return builder.build()


def _prompt(record: dict[str, Any], block: int, chars_per_token: float, named: str) -> tuple[int, Content | None, bool]:
    """(tokens, what they share, whether they were counted by characters)."""
    if "input_length" not in record and "text_input" in record:
        ids = pseudo_tokens(text(record["text_input"], "text_input", named), chars_per_token)
        return len(ids), TokenIds(ids), True
    prompt = whole_number(field(record, "input_length", named), "input_length", named)
    return prompt, block_hashes(record["hash_ids"], block, prompt, named) if record.get("hash_ids") else None, False


def _block_size(name: str, records: list[tuple[int, dict[str, Any]]], builder: TraceBuilder) -> int:
    """The block size at which every line's ids cover its prompt: Mooncake's, or another that fits. UsageError where several others do."""
    counts = [
        (prompt, len(ids))
        for _, record in records
        if isinstance(ids := record.get("hash_ids"), list) and ids and type(prompt := record.get("input_length")) is int
    ]
    fits = [size for size in (BLOCK_TOKENS, *OTHER_SIZES) if all(prompt // size <= n <= -(-prompt // size) for prompt, n in counts)]
    if not counts or not fits or fits[0] == BLOCK_TOKENS:
        return BLOCK_TOKENS  # where nothing fits, the first line that does not says so
    if len(fits) > 1:
        sizes = ", ".join(map(str, sorted(fits)))
        raise UsageError(f"{name}: its hash_ids may be of blocks of {sizes} tokens: say which with prefix-block")
    builder.note(f"hash_ids are of blocks of {fits[0]} tokens: only those cover every prompt")
    return fits[0]


def _time_unit(name: str, records: list[tuple[int, dict[str, Any]]], block: int, builder: TraceBuilder) -> str:
    """Mooncake's milliseconds; seconds where a chat_id or blocks of 16 tokens with fractions show Qwen's. UsageError where fractions leave
    it open.
    """
    times = [value for _, record in records if isinstance(value := record.get("timestamp"), int | float)]
    fractions = any(isinstance(value, float) and not value.is_integer() for value in times)
    if not fractions:
        return "ms"
    if block == 16 or any("chat_id" in record for _, record in records):
        builder.note("timestamps are seconds: they have fractions, and blocks are of 16 tokens")
        return "s"
    raise UsageError(f"{name}: its timestamps have fractions: say whether they are seconds or milliseconds with time-unit s or ms")
