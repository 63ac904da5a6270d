"""One streamed completion, timed token by token."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hw.serve.http_stream import StreamError, events


@dataclass(frozen=True, slots=True)
class Target:
    """A server to load: base URL up to and without `/v1`, model name it serves, patience in seconds."""

    url: str
    model: str
    first_token_timeout_s: float = 120.0
    idle_timeout_s: float = 60.0
    temperature: float = 0.0


@dataclass
class Served:
    """What happened to one request. Times are seconds on the event loop's clock (monotonic); `None` where the event never came.

    `token_s[i]` is when output token i was received; tokens that came in one event share its time.
    """

    prompt_tokens: int
    asked_tokens: int
    sent_s: float
    session: int = -1
    turn: int = 0
    token_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_s: float | None = None
    cached_tokens: int | None = None
    error: str = ""

    @property
    def ok(self) -> bool:
        """Complete: no error and exactly the tokens asked for."""
        return not self.error and self.finish_s is not None and len(self.token_s) == self.asked_tokens

    @property
    def first_token_s(self) -> float | None:
        return self.token_s[0] if self.token_s else None


async def complete(target: Target, prompt: Sequence[int], tokens: int, *, session: int = -1, turn: int = 0) -> Served:
    """Stream one completion of `tokens` output tokens for a prompt of token ids. Never raises: failures are in `error`."""
    payload: dict[str, Any] = {
        "model": target.model,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": target.temperature,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
    }
    record = Served(len(prompt), tokens, asyncio.get_running_loop().time(), session, turn)
    stream = events(f"{target.url.rstrip('/')}/v1/completions", payload)
    try:
        while True:
            patience = target.idle_timeout_s if record.token_s else target.first_token_timeout_s
            try:
                at, event = await asyncio.wait_for(anext(stream), patience)
            except StopAsyncIteration:
                break
            _take(record, at, event)
        if len(record.token_s) != tokens:
            record.error = f"got {len(record.token_s)} of {tokens} tokens"
    except TimeoutError:
        record.error = f"nothing for {patience:g} s"
    except (StreamError, OSError) as error:
        record.error = f"{error}" or type(error).__name__
    finally:
        await stream.aclose()
    return record


def _take(record: Served, at: float, event: dict[str, Any]) -> None:
    """Add one event's tokens: counted by token ids, else by running usage, else as one token per piece of text."""
    usage = event.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    if isinstance(details.get("cached_tokens"), int):
        record.cached_tokens = details["cached_tokens"]
    choices = event.get("choices") or []
    if not choices:
        return
    choice = choices[0]
    ids = choice.get("token_ids")
    if isinstance(ids, list) and ids:
        new = len(ids)
        record.token_ids += ids
    elif isinstance(usage.get("completion_tokens"), int):
        new = usage["completion_tokens"] - len(record.token_s)
    else:
        new = 1 if choice.get("text") else 0
    record.token_s += [at] * max(new, 0)
    if new > 0:
        record.finish_s = at
