"""Datasets of texts: ShareGPT conversations and vLLM's custom JSON lines. They carry no arrival times, and no token counts.

Without a tokenizer, tokens are estimated from characters, and the trace says so. Pieces of that many characters stand for tokens, so
texts that begin alike share KV blocks. All calls arrive at 0: give a request rate, or limit the concurrency.
"""

from __future__ import annotations

import json
import math
import zlib
from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.workload.content import TokenIds
from sim.workload.lines import check_text, field, numbered_objects, text, whole_number
from sim.workload.loader_options import DEFAULT, LoadOptions
from sim.workload.trace import Trace, TraceBuilder

CHARS_PER_TOKEN = 4.0
_CHUNK = 2**20
MAX_ITEM = 16 * 2**20
_HUMAN, _MODEL = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard")


def load_custom(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """vLLM's custom dataset: {"prompt": text, "output_tokens": n} a line; the output length may be left out."""
    builder = TraceBuilder(path.name)
    for line, record in numbered_objects(path):
        named = f"{path.name}: line {line}"
        check_text(record, named)
        prompt = text(field(record, "prompt", named), "prompt", named)
        said = record.get("output_tokens", record.get("output_tokens_count", options.output_tokens))  # the second is GuideLLM's
        output = whole_number(said, "output_tokens", named)
        ids = pseudo_tokens(prompt, options.chars_per_token or CHARS_PER_TOKEN)
        builder.add(f"line {line}", arrival_s=0.0, prompt_tokens=len(ids), output_tokens=output, content=TokenIds(ids))
    return _noted(builder, options)


def load_sharegpt(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """ShareGPT: each conversation's first question and answer, as serving benchmarks use it."""
    builder = TraceBuilder(path.name)
    skipped = 0
    for item, turns in _conversations(path):
        if not turns:
            skipped += 1
            continue
        ids, output = (pseudo_tokens(part, options.chars_per_token or CHARS_PER_TOKEN) for part in turns[0])
        builder.add(f"item {item}", arrival_s=0.0, prompt_tokens=len(ids), output_tokens=len(output), content=TokenIds(ids))
    if skipped:
        builder.note(f"{skipped} conversations without a question and its answer left out")
    return _noted(builder, options)


def load_sharegpt_sessions(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """ShareGPT: each conversation as a session; a turn repeats all before it and follows the previous turn's finish."""
    builder = TraceBuilder(path.name)
    for item, turns in _conversations(path):
        context: array[int] = array("i")
        for turn, (question, answer) in enumerate(turns):
            prompt_text, answer_text = (pseudo_tokens(part, options.chars_per_token or CHARS_PER_TOKEN) for part in (question, answer))
            whole = context + prompt_text + answer_text
            builder.add(
                f"item {item}",
                arrival_s=None if turn else 0.0,
                prompt_tokens=len(context) + len(prompt_text),
                output_tokens=len(answer_text),
                session_id=str(item),
                turn=turn,
                content=TokenIds(whole),
            )
            context = whole
    return _noted(builder, options)


def pseudo_tokens(words: str, chars_per_token: float = CHARS_PER_TOKEN) -> array[int]:
    """One id per piece of `chars_per_token` characters: equal pieces, equal ids. At least one."""
    count = max(1, math.ceil(len(words) / chars_per_token))
    edges = [round(i * chars_per_token) for i in range(count + 1)]
    return array("i", (zlib.crc32(words[a:b].encode("utf-8", "surrogatepass")) >> 1 for a, b in pairwise(edges)))


def _noted(builder: TraceBuilder, options: LoadOptions) -> Trace:
    builder.note(f"token counts estimated: {options.chars_per_token or CHARS_PER_TOKEN:g} characters to the token")
    return builder.build()


def _conversations(path: Path) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """(item number from 0, [(question, answer)...]) of each conversation; other speakers' words are passed over."""
    for item, record in enumerate(_array_items(path)):
        where = f"{path.name}: item {item}"
        if not isinstance(record, dict):
            raise UsageError(f"{where}: expected an object, got {type(record).__name__}")
        check_text(record, where)
        messages = record.get("conversations", record.get("conversation", record.get("messages")))
        if not isinstance(messages, list):
            raise UsageError(f"{where}: conversations is missing")
        turns: list[tuple[str, str]] = []
        question: str | None = None
        for message in messages:
            if not isinstance(message, dict):
                raise UsageError(f"{where}: a message must be an object, got {type(message).__name__}")
            speaker = message.get("from", message.get("role"))
            words = message.get("value", message.get("content"))
            for part in words if isinstance(words, list) else ():
                check_text({str(part.get("type")): part} if isinstance(part, dict) else {}, where)
            if not isinstance(words, str) or not words:
                continue
            if speaker in _HUMAN:
                question = words
            elif speaker in _MODEL and question is not None:
                turns.append((question, words))
                question = None
        yield item, turns


def _array_items(path: Path) -> Iterator[Any]:
    """The items of a file that is one JSON array, read in pieces: memory holds one item at a time."""
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8-sig") as file:
        try:
            pending, started, ended = "", False, False
            while True:
                chunk = file.read(max(_CHUNK, len(pending)))  # an item that does not end is tried a few times, not once a piece
                pending = (pending + chunk).lstrip()
                if not started and pending:
                    if pending[0] != "[":
                        raise UsageError(f"{path.name}: not a JSON array")
                    pending, started = pending[1:], True
                while started and not ended:
                    pending = pending.lstrip(" \t\r\n,")
                    if pending[:1] == "]":
                        ended = True
                        break
                    try:
                        value, end = decoder.raw_decode(pending)
                    except RecursionError:
                        raise UsageError(f"{path.name}: an item is nested too deep") from None
                    except ValueError:
                        break  # cut by the piece's end, or wrong for good: more text will tell
                    if end == len(pending) and chunk:
                        break  # a number may go on in the next piece
                    yield value
                    pending = pending[end:]
                if ended:
                    return
                if not chunk:
                    raise UsageError(f"{path.name}: ends inside its JSON array (cut short, or malformed)")
                if len(pending) > MAX_ITEM:
                    raise UsageError(f"{path.name}: an item longer than {MAX_ITEM // 2**20} MiB, or malformed JSON")
        except UnicodeDecodeError:
            raise UsageError(f"{path.name}: not UTF-8 text") from None
