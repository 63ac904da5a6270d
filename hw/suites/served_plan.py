"""What a served run sends: a ladder of waves, open loops, sessions, a closed loop, a burst; and which of them are sent again.

What is sent again has the same arrivals and sizes, other tokens (nothing is cached) and a name that ends in "again", "again 2", and so on:
what the times of it lie apart by is what no model of the server could predict. A run can send again alone what it needs the noise of.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hw.serve import load
from hw.serve.client import Served, Target

AGAIN = " again"  # ends the name of what is sent a second time; from the third on, a number follows
LOCKSTEP_SENT = 4  # times that sessions and the closed loop are sent in all: each takes seconds, and has few requests


@dataclass(frozen=True, slots=True)
class Experiment:
    """One batch of streams: a name, what it is, and the coroutine that sends it."""

    name: str
    kind: str
    send: Callable[[], Coroutine[Any, Any, list[Served]]]
    n: int
    prompt_tokens: int
    output_tokens: int
    rate_per_s: float = float("nan")
    load: tuple[list[float], list[tuple[int, int]]] | None = None  # an open loop's arrivals (s) and (prompt, output) sizes


# A laptop core takes milliseconds per decoded token and per prompt token alike: short prompts, outputs long enough to time.
CPU_PLAN = {"prompt_scale": 16, "output_scale": 4, "duration_s": 12.0}
GPU_PLAN = {"prompt_scale": 1, "output_scale": 1, "duration_s": 20.0}
AGAIN_PROMPTS = 5 * 10**9  # prompts of open loops sent again begin here
LOCKSTEP_PROMPTS = 10**8  # from those of sessions, or of a closed loop, to those of the next time they are sent


def ladder(target: Target, prompts: load.Prompts, rungs: tuple[int, ...], prompt_tokens: int, output_tokens: int) -> list[Experiment]:
    """One wave per rung, distinct prompts across the whole ladder; lowest and highest rungs first, so that a cut one still spans."""
    order = sorted(rungs, key=lambda n: (n not in (min(rungs), max(rungs)), n))
    found = []
    for n in order:
        first = sum(rungs[: rungs.index(n)]) + 100_000 * prompt_tokens
        send = lambda n=n, first=first: load.wave(target, prompts, n, prompt_tokens, output_tokens, first)  # noqa: E731
        found.append(Experiment(f"ladder c{prompt_tokens} n{n}", "ladder", send, n, prompt_tokens, output_tokens))
    return found


def poisson(
    target: Target, prompts: load.Prompts, rate_per_s: float, duration_s: float, rng: np.random.Generator, *,
    prompt_median: int, output_median: int, prompt_max: int, output_max: int, first: int,
) -> Experiment:  # fmt: skip
    """An open loop of `rate_per_s` over about `duration_s`, lognormal sizes of shape 0.6."""
    count = max(4, round(rate_per_s * duration_s))
    arrivals = load.poisson_arrivals(rate_per_s, count, rng)
    sizes = load.lognormal_sizes(
        count, rng, prompt_median=prompt_median, output_median=output_median, sigma=0.6, prompt_max=prompt_max, output_max=output_max
    )
    return Experiment(
        f"open {rate_per_s:g}/s", "open", lambda: load.open_loop(target, prompts, arrivals, sizes, first), count,
        prompt_median, output_median, rate_per_s, (arrivals, sizes),
    )  # fmt: skip


def open_loops(
    target: Target,
    vocab: int,
    seed: int,
    rates: tuple[float, ...],
    *,
    prompt_scale: int,
    output_scale: int,
    duration_s: float,
    again: bool = False,
) -> list[Experiment]:
    """One Poisson stream per rate (requests/s), about `duration_s` each; the same seed and leading rates give the same loads. Those sent
    `again` have other prompts and another name.
    """
    prompts, rng = load.Prompts(vocab, seed), np.random.default_rng(seed + 10)
    sizes = {
        "prompt_median": max(16, 512 // prompt_scale),
        "prompt_max": max(16, 4096 // prompt_scale),
        "output_median": max(16, 128 // output_scale),
        "output_max": max(16, 512 // output_scale),
    }
    first = AGAIN_PROMPTS if again else 10**9
    loops = [poisson(target, prompts, rate, duration_s, rng, **sizes, first=first + 10**6 * index) for index, rate in enumerate(rates)]
    return [replace(loop, name=loop.name + AGAIN) for loop in loops] if again else loops


def lockstep(target: Target, prompts: load.Prompts, sizing: dict[str, Any], time: int) -> list[Experiment]:
    """Sessions and a closed loop, whose clients wait for their answers, as they are sent for the `time`-th time, the first being 0."""
    first_tokens, turn_tokens = _scaled(1024, sizing["prompt_scale"]), _scaled(128, sizing["prompt_scale"])
    said, answered = _scaled(64, sizing["output_scale"]), _scaled(96, sizing["output_scale"])
    suffix = "" if time == 0 else AGAIN if time == 1 else f"{AGAIN} {time}"
    talk = lambda: load.sessions(  # noqa: E731
        target, prompts, 8, 4, first_tokens=first_tokens, turn_tokens=turn_tokens, output_tokens=said, think_s=0.2,
        first=2 * 10**9 + LOCKSTEP_PROMPTS * time,
    )  # fmt: skip
    loop = lambda: load.closed_loop(target, prompts, 16, 4, first_tokens, answered, 3 * 10**9 + LOCKSTEP_PROMPTS * time)  # noqa: E731
    return [
        Experiment(f"sessions 8x4{suffix}", "sessions", talk, 8, first_tokens, said),
        Experiment(f"closed 16x4{suffix}", "closed", loop, 16, first_tokens, answered),
    ]


def plan(
    target: Target, vocab: int, seed: int, rates: tuple[float, ...], rungs: tuple[int, ...], sizing: dict[str, Any]
) -> list[Experiment]:
    """The standard plan: ladder, open loops, sessions, closed loop; then all but the ladder again. `sizing` is GPU_PLAN or CPU_PLAN."""
    prompts = load.Prompts(vocab, seed)
    found = ladder(target, prompts, rungs, _scaled(2048, sizing["prompt_scale"]), _scaled(128, sizing["output_scale"]))
    found += open_loops(target, vocab, seed, rates, **sizing)
    found += lockstep(target, prompts, sizing, 0)
    found += open_loops(target, vocab, seed, rates, **sizing, again=True)
    return found + [one for time in range(1, LOCKSTEP_SENT) for one in lockstep(target, prompts, sizing, time)]


def _scaled(tokens: int, scale: int) -> int:
    return max(16, tokens // scale)


def burst(target: Target, vocab: int, seed: int, count: int, prompt_tokens: int, output_tokens: int) -> Experiment:
    """`count` requests at once, sized by the caller to need more KV than the server has: it must queue or preempt."""
    prompts = load.Prompts(vocab, seed)
    send = lambda: load.wave(target, prompts, count, prompt_tokens, output_tokens, 4 * 10**9)  # noqa: E731
    return Experiment("burst", "burst", send, count, prompt_tokens, output_tokens)
