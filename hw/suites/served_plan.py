"""Load plan of a served run: a ladder of waves, open loops, sessions, a closed loop, a burst; and replicates of them.

A replicate has the same arrivals and sizes and other tokens (nothing is cached). It counts from 1 in `replicate`; its name ends in "again",
"again 2" and so on. The scatter of replicates is what no model of the server could predict.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hw.serve import load_patterns as load
from hw.serve import text_client
from hw.serve.client import ServedRequest, Target

AGAIN = " again"  # ends the name of what is sent a second time; from the third on, a number follows
LOCKSTEP_SENT = 4  # times that sessions and the closed loop are sent in all: each takes seconds, and has few requests


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """One batch of streams: a label, what it is, and the coroutine that sends it to a server. Nothing is to be read off the label."""

    name: str
    kind: str
    send: Callable[[Target], Coroutine[Any, Any, list[ServedRequest]]]
    n: int
    prompt_tokens: int
    output_tokens: int
    rate_per_s: float = float("nan")
    load: tuple[list[float], list[tuple[int, int]]] | None = None  # arrivals (s) and (prompt, output) sizes; clients: all at 0, by turn
    shared_tokens: int = 0  # that every prompt begins with
    documents: int = 0  # of that length that each client has, and sends by turns; 0: one for all
    text: bool = False  # prompts are text
    replicate: int = 0  # of the same arrivals and sizes: 0 for the first time they are sent


@dataclass(frozen=True, slots=True)
class Sizing:
    """Rungs of the ladder, seconds of an open loop, and what the token counts of a GPU's plan are divided by."""

    rungs: tuple[int, ...]
    duration_s: float
    prompt_scale: int = 1
    output_scale: int = 1

    def prompt(self, tokens: int) -> int:
        return max(16, tokens // self.prompt_scale)

    def output(self, tokens: int) -> int:
        return max(16, tokens // self.output_scale)


GPU_PLAN = Sizing((1, 2, 4, 8, 16, 32, 64, 128), 20.0)
# A laptop core takes milliseconds per decoded token and per prompt token alike: short prompts, outputs long enough to time.
CPU_PLAN = Sizing((1, 2, 4, 8), 12.0, 16, 4)
AGAIN_PROMPTS = 5 * 10**9  # prompts of open loops sent again begin here
THINK_S = 0.2  # from a session's answer to its next turn
LONG_RATE, LONG_COUNT, LONG_PROMPT = 0.5, 6, 20000  # long texts: 1/s, requests, mean tokens; lengths vary by half
EACH_SENDS = 3  # requests of a client of the next closed loops
# By name: clients, prompt and output tokens, tokens of the prompt that are shared, documents of each client.
NAMED = {
    "long": (4, 24_000, 128, 0, 0),
    "shared": (64, 8064, 64, 8000, 0),
    "longest": (1, 100_000, 64, 0, 0),
    "crowd": (256, 256, 128, 0, 0),
    "larger crowd": (512, 256, 128, 0, 0),
    "revisit": (4, 4064, 32, 4000, 6),  # each document EACH_SENDS times, at a reuse distance of 98,000 tokens
    "revisit later": (4, 4064, 32, 4000, 12),  # of 197,000 tokens
    "deep": (8, 262_144, 128, 262_080, 1),  # from the second turn on a prefix cache leaves decodes of 256K tokens alone
}
LONG_OPEN = (1.0, 24, 32_000, 256)  # by name, too: an open loop's rate, requests, prompt and output tokens
# By name, too: rates of open loops of short chats on one system prompt, where the API server has most to do; prompt, output, shared tokens.
SHORT_OPEN_RATES, SHORT_OPEN = (60.0, 110.0, 170.0), (204, 62, 202)
# By name, too, on a server of few blocks: seconds, requests/s, tokens of the shared texts, and lognormal medians and most of what follows.
LASTING_S, LASTING_RATE, LASTING_TEXTS = 600.0, 3.0, (2_000, 6_000, 12_000, 20_000, 30_000, 44_000)
LASTING_SIZES, LASTING_SIGMA = (1024, 160, 12_000, 1024), 0.8
LOCKSTEP_PROMPTS = 10**8  # from those of sessions, or of a closed loop, to those of the next time they are sent


def plan(vocab: int, seed: int, rates: tuple[float, ...], sizing: Sizing) -> list[PlannedLoad]:
    """The standard plan: ladder, open loops, sessions, closed loop; then all but the ladder again."""
    prompts = load.Prompts(vocab, seed)
    found = ladder(prompts, sizing.rungs, sizing.prompt(2048), sizing.output(128))
    found += open_loops(vocab, seed, rates, sizing)
    found += lockstep(prompts, sizing, 0)
    found += open_loops(vocab, seed, rates, sizing, again=True)
    return found + [one for time in range(1, LOCKSTEP_SENT) for one in lockstep(prompts, sizing, time)]


def named_only(vocab: int, seed: int, sizing: Sizing) -> list[PlannedLoad]:
    """Loads that run only where they are named: see NAMED and LONG_OPEN."""
    prompts, found = load.Prompts(vocab, seed), []
    for index, (name, (n, prompt_tokens, output_tokens, prefix, documents)) in enumerate(NAMED.items()):
        prompt, output, shared = sizing.prompt(prompt_tokens), sizing.output(output_tokens), sizing.prompt(prefix) if prefix else 0
        each, first = EACH_SENDS * (documents or 1), 6 * 10**9 + 10**6 * index
        of = (n, each, prompt, output, first, shared, documents)
        send = lambda target, of=of: load.closed_loop(target, prompts, *of)  # noqa: E731
        sizes = ([0.0] * n * each, [(prompt, output)] * n * each)
        label = f"{name} {n}x{each}"
        found.append(PlannedLoad(label, "closed", send, n, prompt, output, load=sizes, shared_tokens=shared, documents=documents))
    rate, count, *size = LONG_OPEN
    arrivals = load.poisson_arrivals(rate, count, np.random.default_rng(seed + 11))
    sizes_of = [(sizing.prompt(size[0]), sizing.output(size[1]))] * count
    open_send = lambda target: load.open_loop(target, prompts, arrivals, sizes_of, 7 * 10**9)  # noqa: E731
    long_open = PlannedLoad(f"long open {rate:g}/s", "open", open_send, count, *sizes_of[0], rate, (arrivals, sizes_of))
    short = [short_open(prompts, sizing, rate, seed) for rate in SHORT_OPEN_RATES]
    return [*found, long_open, *short, lasting(prompts, sizing, np.random.default_rng(seed + 12))]


def short_open(prompts: load.Prompts, sizing: Sizing, rate: float, seed: int) -> PlannedLoad:
    """A Poisson stream of short requests, all of whose prompts begin with one text."""
    count = round(rate * sizing.duration_s)
    prompt, output, prefix = sizing.prompt(SHORT_OPEN[0]), sizing.output(SHORT_OPEN[1]), sizing.prompt(SHORT_OPEN[2])
    arrivals = load.poisson_arrivals(rate, count, np.random.default_rng(seed + 13))
    sizes, shared = [(prompt, output)] * count, [(0, prefix)] * count
    first = 9 * 10**9 + 10**5 * round(rate)
    send = lambda target: load.open_loop(target, prompts, arrivals, sizes, first, shared)  # noqa: E731
    name = f"short open {rate:g}/s"
    return PlannedLoad(name, "open", send, count, prompt, output, rate, (arrivals, sizes), shared_tokens=prefix)


def lasting(prompts: load.Prompts, sizing: Sizing, rng: np.random.Generator) -> PlannedLoad:
    """Ten minutes of a Poisson stream, each request on one of six texts: does a server last, are its blocks and memory given back?"""
    count = round(LASTING_S * LASTING_RATE)
    arrivals = load.poisson_arrivals(LASTING_RATE, count, rng)
    texts = rng.integers(0, len(LASTING_TEXTS), count).tolist()
    prompt, output, longest, most = LASTING_SIZES
    own = load.lognormal_sizes(
        count, rng, prompt_median=prompt, output_median=output, sigma=LASTING_SIGMA, prompt_max=longest, output_max=most
    )
    sizes = [(sizing.prompt(LASTING_TEXTS[text] + new), sizing.output(said)) for text, (new, said) in zip(texts, own, strict=True)]
    shared = [(text, sizing.prompt(LASTING_TEXTS[text])) for text in texts]
    send = lambda target: load.open_loop(target, prompts, arrivals, sizes, 8 * 10**9, shared)  # noqa: E731
    prompt, output = (int(each) for each in np.median(sizes, axis=0))
    return PlannedLoad(f"lasting {LASTING_RATE:g}/s", "open", send, count, prompt, output, LASTING_RATE, (arrivals, sizes))


def ladder(prompts: load.Prompts, rungs: tuple[int, ...], prompt_tokens: int, output_tokens: int) -> list[PlannedLoad]:
    """One wave per rung, distinct prompts across the whole ladder; lowest and highest rungs first, so that a cut one still spans."""
    order = sorted(rungs, key=lambda n: (n not in (min(rungs), max(rungs)), n))
    found = []
    for n in order:
        first = sum(rungs[: rungs.index(n)]) + 100_000 * prompt_tokens
        send = lambda target, n=n, first=first: load.wave(target, prompts, n, prompt_tokens, output_tokens, first)  # noqa: E731
        wave = ([0.0] * n, [(prompt_tokens, output_tokens)] * n)
        found.append(PlannedLoad(f"ladder c{prompt_tokens} n{n}", "ladder", send, n, prompt_tokens, output_tokens, load=wave))
    return found


def open_loops(vocab: int, seed: int, rates: tuple[float, ...], sizing: Sizing, *, again: bool = False) -> list[PlannedLoad]:
    """One Poisson stream per rate (requests/s), sizes lognormal of shape 0.6; the same seed and leading rates give the same loads.
    Those sent `again` have other prompts and another name.
    """
    prompts, rng = load.Prompts(vocab, seed), np.random.default_rng(seed + 10)
    median, most = (sizing.prompt(512), sizing.output(128)), (sizing.prompt(4096), sizing.output(512))
    found = []
    for index, rate in enumerate(rates):
        count = max(4, round(rate * sizing.duration_s))
        arrivals = load.poisson_arrivals(rate, count, rng)
        sizes = load.lognormal_sizes(
            count, rng, prompt_median=median[0], output_median=median[1], sigma=0.6, prompt_max=most[0], output_max=most[1]
        )
        first = (AGAIN_PROMPTS if again else 10**9) + 10**6 * index
        send = lambda target, a=arrivals, s=sizes, f=first: load.open_loop(target, prompts, a, s, f)  # noqa: E731
        loop = PlannedLoad(f"open {rate:g}/s", "open", send, count, *median, rate, (arrivals, sizes))
        found.append(replace(loop, name=loop.name + AGAIN, replicate=1) if again else loop)
    return found


def text_plan(vocab: int, folder: Path, tokenizer: Path, seed: int, rates: tuple[float, ...], sizing: Sizing) -> list[PlannedLoad]:
    """Per rate, a Poisson stream of text by vLLM's own client and one of token ids by ours; then long texts, sessions and a closed loop.

    Results of vLLM's client are kept in `folder`. Each of its runs takes some seconds to start.
    """
    prompts = load.Prompts(vocab, seed)
    text = partial(_text, folder, tokenizer, seed)
    found = []
    for rate, ours in zip(rates, open_loops(vocab, seed, rates, sizing), strict=True):
        count = max(4, round(rate * sizing.duration_s))
        found += [text(f"text {rate:g}/s", rate, count, sizing.prompt(512), sizing.output(128)), ours]
    clients, turns, prompt, output = 32, 3, sizing.prompt(1024), sizing.output(96)
    loop = lambda target: load.closed_loop(target, prompts, clients, turns, prompt, output, 3 * 10**9)  # noqa: E731
    return [
        *found,
        text("text long", LONG_RATE, LONG_COUNT, sizing.prompt(LONG_PROMPT), sizing.output(64)),
        lockstep(prompts, sizing, 0)[0],
        PlannedLoad(f"closed {clients}x{turns}", "closed", loop, clients, prompt, output),
    ]


def _text(folder: Path, tokenizer: Path, seed: int, name: str, rate: float, count: int, prompt: int, output: int) -> PlannedLoad:
    keep = folder / f"bench_{name.replace(' ', '_').replace('/', '_per_')}.json"
    send = lambda target: text_client.bench(target, tokenizer, rate, count, prompt, output, seed, keep)  # noqa: E731
    return PlannedLoad(name, "open", send, count, prompt, output, rate, text=True)


def lockstep(prompts: load.Prompts, sizing: Sizing, time: int) -> list[PlannedLoad]:
    """Sessions and a closed loop, whose clients wait for their answers, as they are sent for the `time`-th time, the first being 0."""
    first_tokens, turn_tokens = sizing.prompt(1024), sizing.prompt(128)
    said, answered = sizing.output(64), sizing.output(96)
    suffix = "" if time == 0 else AGAIN if time == 1 else f"{AGAIN} {time}"
    at = LOCKSTEP_PROMPTS * time
    talk = lambda target: load.sessions(  # noqa: E731
        target, prompts, 8, 4, first_tokens=first_tokens, turn_tokens=turn_tokens, output_tokens=said, think_s=THINK_S, first=2 * 10**9 + at
    )
    loop = lambda target: load.closed_loop(target, prompts, 16, 4, first_tokens, answered, 3 * 10**9 + at)  # noqa: E731
    turns = [(first_tokens + turn * (said + turn_tokens), said) for turn in range(4) for _ in range(8)]
    return [
        PlannedLoad(f"sessions 8x4{suffix}", "sessions", talk, 8, first_tokens, said, load=([0.0] * len(turns), turns), replicate=time),
        PlannedLoad(
            f"closed 16x4{suffix}",
            "closed",
            loop,
            16,
            first_tokens,
            answered,
            load=([0.0] * 64, [(first_tokens, answered)] * 64),
            replicate=time,
        ),
    ]


def burst(vocab: int, seed: int, count: int, prompt_tokens: int, output_tokens: int) -> PlannedLoad:
    """`count` requests at once, sized by the caller to need more KV than the server has: it must queue or preempt."""
    prompts = load.Prompts(vocab, seed)
    send = lambda target: load.wave(target, prompts, count, prompt_tokens, output_tokens, 4 * 10**9)  # noqa: E731
    sizes = ([0.0] * count, [(prompt_tokens, output_tokens)] * count)
    return PlannedLoad("burst", "burst", send, count, prompt_tokens, output_tokens, load=sizes)
