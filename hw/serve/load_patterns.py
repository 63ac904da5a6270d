"""Ways to load a server: a wave of N clients, a closed loop, a Poisson stream, multi-turn sessions. All take a token source.

Every function returns all records, failed ones included; what they mean is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hw.serve.client import ServedRequest, Target, complete


@dataclass(frozen=True, slots=True)
class Prompts:
    """Random token-id prompts, distinct from the first token on."""

    vocab: int
    seed: int

    def draw(self, index: int, tokens: int) -> list[int]:
        """Prompt number `index` of `tokens` ids; the same index gives the same prompt."""
        drawn: list[int] = np.random.default_rng((self.seed, 1, index)).integers(10, self.vocab - 10, tokens).tolist()
        return drawn


async def wave(target: Target, prompts: Prompts, n: int, prompt_tokens: int, output_tokens: int, first: int = 0) -> list[ServedRequest]:
    """N requests at once, one each."""
    texts = [prompts.draw(first + i, prompt_tokens) for i in range(n)]
    return list(await asyncio.gather(*(complete(target, text, output_tokens) for text in texts)))


async def closed_loop(
    target: Target, prompts: Prompts, n: int, per_client: int, prompt_tokens: int, output_tokens: int, first: int = 0, shared: int = 0,
    documents: int = 0,
) -> list[ServedRequest]:  # fmt: skip
    """N clients, each sending its next request when the last one ended; `session` is the client, `turn` its request. All prompts begin
    with the same `shared` tokens; with `documents` each client has so many such texts of its own, and sends them by turns.
    """

    async def one(client: int) -> list[ServedRequest]:
        done = []
        for turn in range(per_client):
            which = 1 + client * documents + turn % documents if documents else 0
            prefix = prompts.draw(first + n * per_client + which, shared)
            text = prefix + prompts.draw(first + client * per_client + turn, prompt_tokens - shared)
            done.append(await complete(target, text, output_tokens, session=client, turn=turn))
        return done

    return [record for batch in await asyncio.gather(*(one(c) for c in range(n))) for record in batch]


async def open_loop(
    target: Target, prompts: Prompts, arrivals_s: Sequence[float], sizes: Sequence[tuple[int, int]], first: int = 0,
    shared: Sequence[tuple[int, int]] = (),
) -> list[ServedRequest]:  # fmt: skip
    """Requests sent at given offsets from now whatever the server does; `sizes` are (prompt, output) tokens of each, and `shared` the
    number and tokens of the text that each begins with, where they begin with any.
    """
    if len(arrivals_s) != len(sizes):
        raise ValueError(f"{len(arrivals_s)} arrivals for {len(sizes)} sizes")
    begun = {each: prompts.draw(first + len(sizes) + each[0], each[1]) for each in set(shared)}
    begins = [begun[each] for each in shared] or [[]] * len(sizes)
    texts = [begin + prompts.draw(first + i, size[0] - len(begin)) for i, (begin, size) in enumerate(zip(begins, sizes, strict=True))]
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def one(index: int) -> ServedRequest:
        await asyncio.sleep(max(0.0, start + arrivals_s[index] - loop.time()))
        return await complete(target, texts[index], sizes[index][1])

    return list(await asyncio.gather(*(one(i) for i in range(len(sizes)))))


async def sessions(
    target: Target,
    prompts: Prompts,
    count: int,
    turns: int,
    *,
    first_tokens: int,
    turn_tokens: int,
    output_tokens: int,
    think_s: float,
    first: int = 0,
) -> list[ServedRequest]:
    """Conversations whose every turn carries all before it: a prefix cache can serve all but the new part.

    The assistant's part is what the server sent (token ids when it tells them, else filler of the same length). A failed turn
    ends its session.
    """

    async def one(session: int) -> list[ServedRequest]:
        history = prompts.draw(first + session * (turns + 1), first_tokens)
        done: list[ServedRequest] = []
        for turn in range(turns):
            record = await complete(target, history, output_tokens, session=session, turn=turn)
            done.append(record)
            if not record.ok:
                break
            answer = record.token_ids or prompts.draw(10**6 + first + session, output_tokens)
            history = [*history, *answer, *prompts.draw(first + session * (turns + 1) + turn + 1, turn_tokens)]
            await asyncio.sleep(think_s)
        return done

    return [record for batch in await asyncio.gather(*(one(s) for s in range(count))) for record in batch]


def poisson_arrivals(rate_per_s: float, count: int, rng: np.random.Generator) -> list[float]:
    """`count` arrival offsets of a Poisson stream, the first at its own exponential gap."""
    arrivals: list[float] = np.cumsum(rng.exponential(1.0 / rate_per_s, count)).tolist()
    return arrivals


def lognormal_sizes(
    count: int, rng: np.random.Generator, *, prompt_median: int, output_median: int, sigma: float, prompt_max: int, output_max: int
) -> list[tuple[int, int]]:
    """(prompt, output) tokens of each request: independent lognormals of shape `sigma`, cut to [16, max] and [2, max]."""
    prompt = np.clip(prompt_median * np.exp(sigma * rng.standard_normal(count)), 16, prompt_max).astype(int)
    output = np.clip(output_median * np.exp(sigma * rng.standard_normal(count)), 2, output_max).astype(int)
    return list(zip(prompt.tolist(), output.tolist(), strict=True))
