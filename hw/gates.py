"""Do two implementations say the same? Top-1 agreement, KL per step and perplexity difference, on the same tokens.

Bit-equality is never asked of two implementations: they add in other orders. Both score one given token sequence (teacher forcing), so
that an early difference does not carry every later step away. Works on the top-k log-probabilities that servers return.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.serve.client import Target
from hw.serve.http_stream import StreamError, post_json
from sim.errors import SimctlError


@dataclass(frozen=True, slots=True)
class Agreement:
    """Comparison of two implementations over `steps` tokens. KL in nats per step, from the first to the second.

    `ppl_ratio_minus_1` is perplexity of the second over that of the first, less one, on the `scored` tokens: those that both gave a
    log-probability for. NaN when that is less than half of them.
    """

    steps: int
    top1: float
    kl_mean: float
    kl_max: float
    ppl_ratio_minus_1: float
    scored: int

    def failures(self, *, top1: float = 0.99, kl: float = 0.01, ppl: float = 0.01) -> list[str]:
        """The gates that do not hold, in words; empty when all do. NaN never passes."""
        found = []
        if not self.top1 >= top1:
            found.append(f"top-1 agreement {self.top1:.4f} < {top1}")
        if not self.kl_mean <= kl:
            found.append(f"KL {self.kl_mean:.3g} nats per step > {kl}")
        if 2 * self.scored < self.steps:
            found.append(f"perplexity is not known: only {self.scored} of {self.steps} tokens were scored by both")
        elif not abs(self.ppl_ratio_minus_1) <= ppl:
            found.append(f"perplexity differs by {self.ppl_ratio_minus_1:+.3%}, more than {ppl:.1%}")
        return found


Top = Mapping[str, float]  # token -> log-probability, the k likeliest of one step


def from_top(first: Sequence[Top], second: Sequence[Top], first_logp: Sequence[float], second_logp: Sequence[float]) -> Agreement:
    """Compare top-k log-probabilities per step; `first_logp` and `second_logp` are those of the scored tokens, NaN where not given.

    KL is over the tokens both list, plus one bucket for all else, which makes it a lower bound of the true one.
    """
    if not len(first) == len(second) == len(first_logp) == len(second_logp) or not first:
        raise ValueError("both sides must score the same steps, at least one")
    same = np.array([max(a, key=a.__getitem__) == max(b, key=b.__getitem__) for a, b in zip(first, second, strict=True)])
    kl = np.array([_bucketed_kl(a, b) for a, b in zip(first, second, strict=True)])
    a, b = np.asarray(first_logp, dtype=float), np.asarray(second_logp, dtype=float)
    given = ~(np.isnan(a) | np.isnan(b))
    return agreement(same, kl, a[given], b[given])


async def compare_servers(
    first: Target, second: Target, sequences: Sequence[Sequence[int]], k: int = 10, *, token_ids: bool = False
) -> Agreement:
    """Let both servers score the same token-id sequences. Raises SimctlError when one does not return log-probabilities.

    Tokens are distinguished by their text, which two ids may share; with `token_ids` (vLLM and llama.cpp's server know them) by their ids.
    A server that does not score prompts (llama.cpp's) is asked, by ids, for the next token of every prefix; the log-probability of the
    token that really follows is then known only where it is among the k likeliest.
    """
    a, b = [], []
    for tokens in sequences:
        one, other = await asyncio.gather(*(_score(target, tokens, k, token_ids) for target in (first, second)))
        a += one
        b += other
    return from_top([t for t, _ in a], [t for t, _ in b], [p for _, p in a], [p for _, p in b])


async def _score(target: Target, tokens: Sequence[int], k: int, token_ids: bool) -> list[tuple[Top, float]]:
    """(top-k, log-probability of the token) of every token after the first."""
    payload = {"model": target.model, "prompt": list(tokens), "max_tokens": 1, "temperature": 0.0, "echo": True, "logprobs": k}
    payload |= {"return_tokens_as_token_ids": True} if token_ids else {}
    try:
        scored = await _logprobs(target, payload)
        if token_ids and "content" in scored:
            return [await _next(target, tokens, at, k) for at in range(1, len(tokens))]
        steps = list(zip(scored["top_logprobs"], scored["token_logprobs"], strict=True))[1 : len(tokens)]
        if len(steps) != len(tokens) - 1 or not all(steps):
            raise KeyError("too few steps")
        return [({str(t): float(v) for t, v in top.items()}, float(p)) for top, p in steps]
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        hint = "" if token_ids else "; a server that tells token ids can be compared with --token-ids"
        raise SimctlError(f"{target.url} does not score prompts (echo with logprobs): {error}{hint}") from error
    except (StreamError, OSError, TimeoutError) as error:
        raise SimctlError(f"{target.url}: {str(error) or type(error).__name__}") from error


async def _next(target: Target, tokens: Sequence[int], at: int, k: int) -> tuple[Top, float]:
    """The same of token `at` alone, from the top k of what follows the tokens before it, in llama.cpp's form; NaN if not listed."""
    payload = {"model": target.model, "prompt": list(tokens[:at]), "max_tokens": 1, "temperature": 0.0, "logprobs": k}
    (step,) = (await _logprobs(target, payload))["content"][:1]
    top = {f"token_id:{int(t['id'])}": float(t["logprob"]) for t in step["top_logprobs"]}
    return top, top.get(f"token_id:{tokens[at]}", math.nan)


async def _logprobs(target: Target, payload: dict[str, Any]) -> Any:
    answer = await asyncio.wait_for(post_json(f"{target.url.rstrip('/')}/v1/completions", payload), target.first_token_timeout_s)
    return answer["choices"][0]["logprobs"]


def _bucketed_kl(first: Top, second: Top) -> float:
    shared = first.keys() & second.keys()
    p, q = [math.exp(first[t]) for t in shared], [math.exp(second[t]) for t in shared]
    p.append(max(1.0 - sum(p), 1e-12))
    q.append(max(1.0 - sum(q), 1e-12))
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def agreement(same: NDArray[np.bool_], kl: NDArray[np.float64], a: NDArray[np.float64], b: NDArray[np.float64]) -> Agreement:
    """Of steps: whether both have the same likeliest token, and KL [step]; log-probabilities of the tokens that both scored [n]."""
    ratio = math.exp(float(np.mean(a) - np.mean(b))) - 1.0 if 2 * len(a) >= len(same) else math.nan
    return Agreement(len(same), float(np.mean(same)), float(np.mean(kl)), float(np.max(kl)), ratio, len(a))
