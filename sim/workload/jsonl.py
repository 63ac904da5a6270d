"""simctl's own trace format: JSON lines, one call a line.

    {"arrival_s": 0.0, "prompt_tokens": 512, "output_tokens": 128}

Optional: `request_id`; `session_id` and `turn` (from 0); `prompt_token_ids` (its length is then the prompt's);
`block_hashes` with `block_size` (any size; the last block may be partial); `system_prompt` with `system_tokens` (prompts
of the same one begin with the same tokens); `priority` (lower comes first, for engines that schedule by it); `cancel_s`
(seconds after arrival at which the client gives up); `tenant` (for fleets that share by tenant); `model` (for fleets of
several); `adapter` (the LoRA adapter that is asked for); `images` (how many of them the prompt has). A later turn of a session
may leave out `arrival_s`: it arrives `think_s` (default 0) after the previous turn has finished. A turn without token
ids or hashes is taken to repeat its session's previous prompt and output.

`after`, a list of earlier request_ids, makes a graph of calls: a call waits for all of them, and for its session's
previous turn. The first turn of a session may go `after` a call of another one and begin with what that has said, its prompt and answer:
`context_of` names it. Several calls after one are subagents, one after several joins them, and one that nobody is after runs in
the background.
"""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.specs.lookup import did_you_mean
from sim.workload.content import BlockHashes, Content, Grown, SystemPrompt, TokenIds
from sim.workload.lines import field, number, numbered_objects, text, whole_number
from sim.workload.loader_options import DEFAULT, LoadOptions
from sim.workload.trace import Trace, TraceBuilder

KEYS = frozenset(
    {"arrival_s", "prompt_tokens", "output_tokens", "request_id", "session_id", "turn", "think_s"}
    | {
        "prompt_token_ids",
        "block_hashes",
        "block_size",
        "priority",
        "cancel_s",
        "tenant",
        "model",
        "adapter",
        "context_of",
        "images",
        "system_prompt",
        "system_tokens",
        "after",
    }
)
MAX_TOKEN_ID = 2**31


def load_jsonl(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """The trace. Raises UsageError naming the line that is wrong."""
    builder = TraceBuilder(path.name)
    context: dict[str, int] = {}  # session -> tokens its next turn can repeat
    said: dict[str, int] = {}  # request id of a call of a session -> tokens that another session can repeat
    for line, record in numbered_objects(path):
        where, named = f"line {line}", f"{path.name}: line {line}"
        unknown = sorted(set(record).difference(KEYS))
        if unknown:
            raise builder.error(
                where, f"unknown key {unknown[0]!r}{did_you_mean(unknown[0], KEYS) or ';'} known: {', '.join(sorted(KEYS))}"
            )
        session = text(record["session_id"], "session_id", named) if "session_id" in record else None
        output = whole_number(field(record, "output_tokens", named), "output_tokens", named)
        prompt, content = _prompt(record, named)
        if session is not None:
            if (content is None or isinstance(content, SystemPrompt)) and session in context:  # the session has said its system prompt
                content = Grown(min(context[session], prompt))
            if "context_of" in record:
                content = _quoted(record, session in context, content, prompt, said, named)
            context[session] = prompt + output
            said[text(record.get("request_id", len(builder)), "request_id", named)] = prompt + output
        elif "context_of" in record:
            raise UsageError(f"{named}: context_of needs a session_id: what is said is kept by session")
        names: dict[str, Any] = {name: text(record[name], name, named) for name in ("tenant", "model", "adapter") if name in record}
        builder.add(
            where,
            arrival_s=_arrival(record, named),
            prompt_tokens=prompt,
            output_tokens=output,
            request_id=text(record["request_id"], "request_id", named) if "request_id" in record else None,
            session_id=session,
            turn=whole_number(record["turn"], "turn", named) if "turn" in record else None,
            think_s=number(record.get("think_s", 0.0), "think_s", named),
            content=content,
            priority=whole_number(record.get("priority", 0), "priority", named),
            cancel_s=number(record["cancel_s"], "cancel_s", named) if "cancel_s" in record else math.inf,
            **names,
            images=whole_number(record.get("images", 0), "images", named),
            after=_after(record, named) + ((str(record["context_of"]),) if "context_of" in record else ()),
        )
    return builder.build()


def _quoted(record: dict[str, Any], goes_on: bool, content: Content | None, prompt: int, said: dict[str, int], where: str) -> Grown:
    """What a session that begins with another's words repeats."""
    name = text(record["context_of"], "context_of", where)
    if goes_on or content is not None:
        raise UsageError(f"{where}: context_of is of a session's first turn, and says all that its prompt shares")
    if name not in said:
        raise UsageError(f"{where}: context_of names {name!r}, which is no earlier call of a session")
    return Grown(min(said[name], prompt), name)


def _after(record: dict[str, Any], where: str) -> tuple[str, ...]:
    names = record.get("after", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{where}: after must be a list of request ids")
    return tuple(names)


def _arrival(record: dict[str, Any], where: str) -> float | None:
    if "arrival_s" not in record:
        return None if record.get("session_id") is not None or record.get("after") else number(field(record, "arrival_s", where), "", where)
    if "think_s" in record:
        raise UsageError(f"{where}: arrival_s and think_s exclude each other")
    return number(record["arrival_s"], "arrival_s", where)


def _prompt(record: dict[str, Any], where: str) -> tuple[int, Content | None]:
    if "prompt_token_ids" in record:
        if "block_hashes" in record:
            raise UsageError(f"{where}: prompt_token_ids and block_hashes exclude each other")
        if "system_prompt" in record:
            raise UsageError(f"{where}: prompt_token_ids and system_prompt exclude each other")
        ids = token_ids(record["prompt_token_ids"], "prompt_token_ids", where)
        if "prompt_tokens" in record and whole_number(record["prompt_tokens"], "prompt_tokens", where) != len(ids):
            raise UsageError(f"{where}: prompt_tokens is {record['prompt_tokens']}, but there are {len(ids)} token ids")
        return len(ids), TokenIds(ids)
    prompt = whole_number(field(record, "prompt_tokens", where), "prompt_tokens", where)
    if "system_prompt" in record or "system_tokens" in record:
        if "block_hashes" in record:
            raise UsageError(f"{where}: system_prompt and block_hashes exclude each other")
        tokens = whole_number(field(record, "system_tokens", where), "system_tokens", where)
        if not 1 <= tokens <= prompt:
            raise UsageError(f"{where}: system_tokens must be 1 to the prompt's {prompt}, got {tokens}")
        return prompt, SystemPrompt(text(field(record, "system_prompt", where), "system_prompt", where), tokens)
    if "block_hashes" in record:
        size = whole_number(field(record, "block_size", where), "block_size", where)
        return prompt, block_hashes(record["block_hashes"], size, prompt, where)
    if "block_size" in record:
        raise UsageError(f"{where}: block_size without block_hashes")
    return prompt, None


def token_ids(value: object, name: str, where: str) -> array[int]:
    """A JSON list of token ids as an array. Raises UsageError unless it is a list of ints in 0..2**31-1."""
    if not isinstance(value, list) or not all(type(v) is int and 0 <= v < MAX_TOKEN_ID for v in value):
        raise UsageError(f"{where}: {name} must be a list of whole numbers in 0..2**31-1")
    return array("i", value)


def block_hashes(value: object, block_size: int, prompt_tokens: int, where: str) -> BlockHashes:
    """Hashes of the prompt's blocks, the partial last one included or not. Raises UsageError when their number does
    not fit.
    """
    if not isinstance(value, list) or not (kinds := set(map(type, value))) <= {int, str}:
        raise UsageError(f"{where}: block hashes must be a list of whole numbers or strings")
    if not 1 <= block_size <= 2**20:
        raise UsageError(f"{where}: block_size must be 1..2**20, got {block_size}")
    full, some = prompt_tokens // block_size, -(-prompt_tokens // block_size)
    if not full <= len(value) <= some:
        expected = f"{full}" if full == some else f"{full} or {some}"
        fits = f"{prompt_tokens} prompt tokens are {expected} blocks of {block_size}"
        raise UsageError(f"{where}: {fits}, but there are {len(value)} hashes")
    try:
        return BlockHashes(array("q", value) if str not in kinds else tuple(value), block_size)
    except OverflowError:
        return BlockHashes(tuple(value), block_size)
