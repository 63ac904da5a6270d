"""One streamed completion, timed token by token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hw.serve.http_stream import StreamError, events

# Of a text prompt, one for every token id: short and common, so that most are one token to any tokenizer.
WORDS = """
    time year people way day man thing woman life child world school state family student group country problem hand part place case
    week company system program question work night point home water room mother area money story fact month lot right study book eye
    job word business issue side kind head house service friend father power hour game line end member law car city
""".split()  # noqa: SIM905
AND_THEN = "\nWrite a very long story with all of these words."  # models would stop early otherwise; last, so that prompts differ at once


@dataclass(frozen=True, slots=True)
class Target:
    """A server to load: base URL up to and without `/v1`, model name it serves, patience in seconds.

    `text` sends words in place of token ids and no field that OpenAI's interface lacks; a `chat` takes nothing else. `headers` may hold
    keys, which nothing shows or keeps. Of `adapters`, if any, half of the requests ask for one, as their prompts begin.
    """

    url: str
    model: str
    first_token_timeout_s: float = 120.0
    idle_timeout_s: float = 60.0
    temperature: float = 0.0
    text: bool = False
    chat: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    adapters: tuple[str, ...] = ()


@dataclass
class ServedRequest:
    """Events of one request. Times are seconds on the event loop's clock (monotonic); `None` where the event never came.

    `token_s[i]` is when output token i was received; tokens that came in one event share its time. Where a server gives their number
    only at the end, they are spread evenly over the pieces of text. `ended` says that the server called a text finished,
    maybe before the tokens asked for.
    """

    prompt_tokens: int
    requested_tokens: int
    sent_s: float
    session: int = -1
    turn: int = 0
    token_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_s: float | None = None
    cached_tokens: int | None = None
    error: str = ""
    ended: bool = False
    by_piece: bool = False  # counted as pieces of text so far
    usage_tokens: int | None = None  # output tokens as the server counts them

    @property
    def ok(self) -> bool:
        """Complete: no error, and exactly the tokens asked for or an answer that the server calls finished."""
        return not self.error and self.finish_s is not None and (self.ended or len(self.token_s) == self.requested_tokens)

    @property
    def first_token_s(self) -> float | None:
        return self.token_s[0] if self.token_s else None


async def complete(target: Target, prompt: Sequence[int], tokens: int, *, session: int = -1, turn: int = 0) -> ServedRequest:
    """Stream one completion of `tokens` output tokens for a prompt of token ids. Never raises: failures are in `error`."""
    record = ServedRequest(0 if target.text else len(prompt), tokens, asyncio.get_running_loop().time(), session, turn)
    path = "/v1/chat/completions" if target.chat else "/v1/completions"
    stream: Any = events(f"{target.url.rstrip('/')}{path}", _payload(target, prompt, tokens), target.headers)
    try:
        while True:
            patience = target.idle_timeout_s if record.token_s else target.first_token_timeout_s
            try:
                at, event = await asyncio.wait_for(anext(stream), patience)
            except StopAsyncIteration:
                break
            _take(target, record, at, event)
        _space_evenly(record)
        if target.text and not record.prompt_tokens:
            record.error = "the server does not give the number of tokens: its stream has no usage"
        elif len(record.token_s) != tokens and not (record.ended and record.token_s):
            record.error = f"got {len(record.token_s)} of {tokens} tokens"
    except TimeoutError:
        record.error = f"nothing for {patience:g} s"
    except (StreamError, OSError) as error:
        record.error = f"{error}" or type(error).__name__
    finally:
        await stream.aclose()
    return record


def _payload(target: Target, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    turn, adapted = divmod(prompt[0], 2) if target.adapters else (0, 0)
    model = target.adapters[turn % len(target.adapters)] if adapted else target.model
    plain = {"model": model, "max_tokens": tokens, "temperature": target.temperature, "stream": True}
    if not target.text:
        options = {"include_usage": True, "continuous_usage_stats": True}
        return plain | {"prompt": list(prompt), "ignore_eos": True, "stream_options": options, "return_token_ids": True}
    text = " ".join(WORDS[token % len(WORDS)] for token in prompt) + AND_THEN
    said = {"messages": [{"role": "user", "content": text}]} if target.chat else {"prompt": text}
    return plain | said | {"stream_options": {"include_usage": True}}


def _take(target: Target, record: ServedRequest, at: float, event: dict[str, Any]) -> None:
    """Add one event's tokens: counted by token ids, else by running usage, else as one token per piece of text."""
    usage = event.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    if isinstance(details.get("cached_tokens"), int):
        record.cached_tokens = details["cached_tokens"]
    if target.text and isinstance(usage.get("prompt_tokens"), int):
        record.prompt_tokens = usage["prompt_tokens"]
    said = usage.get("completion_tokens")
    if isinstance(said, int) and said <= record.requested_tokens:  # more would be a mistake
        record.usage_tokens = said
    choices = event.get("choices") or []
    if not choices:
        return
    choice = choices[0]
    record.ended = record.ended or (target.text and bool(choice.get("finish_reason")))
    ids = choice.get("token_ids")
    if isinstance(ids, list) and ids:
        new = len(ids)
        record.token_ids += ids
    elif isinstance(said, int) and not record.by_piece:
        new = said - len(record.token_s)
    else:
        delta = choice.get("delta") or {}
        new = 1 if any((choice.get("text"), *(delta.get(name) for name in ("content", "reasoning_content", "reasoning")))) else 0
        record.by_piece = record.by_piece or new > 0
    record.token_s += [at] * max(new, 0)
    if new > 0:
        record.finish_s = at


def _space_evenly(record: ServedRequest) -> None:
    """Tokens of pieces that may hold several, or a part of one, once their number is known: first and last keep their times."""
    if record.by_piece and record.usage_tokens:
        times, steps = record.token_s, max(record.usage_tokens - 1, 1)
        record.token_s = [times[round(i * (len(times) - 1) / steps)] for i in range(record.usage_tokens)]
