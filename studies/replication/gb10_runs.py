"""The served runs of the GB10 reference, re-enacted: n clients that send one prompt each at once to a llama.cpp server.

What the traces imply and the tables do not say: how many of the requests are in slots when the first iteration is
decided, the rest by the second (in the traced runs a quarter of 128: any number from 28 to 36 gives the same
counters); and the prompt's last few tokens run in an iteration of their own, as the server does for models with
recurrent state.

The first is a matter of milliseconds and differs from run to run: one variant, run in Phases 58 and 59, held back 220
and 279 decodes, as it does here with 25 to 39 and 84 to 98 requests in time. So each run is re-enacted with the
numbers that its own count of held-back decodes allows, and where it has none, with those of the traces.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from sim.engine.config import EngineConfig
from sim.engine.interface import Iteration, Request, Scheduler
from sim.engine.schedulers import LlamaCppScheduler
from sim.ticks import TICK_S

GENERATED = 64
PROMPTS = {("dense", "128"): 22913, ("dense", "32"): 5704, ("moe", "128"): 17794}
NAMES = {
    "LLAMA_TTFT_PREFILL_FIRST": "prefill_first",
    "MAX_DEFER": "max_defer",
    "MIN_WAITING": "min_waiting",
    "LLAMA_MAX_BATCH_TOKENS": "max_batch_tokens",
    "LLAMA_PREFILL_CAP": "prefill_cap",
}


@dataclass(slots=True)
class AdmissionTrace:
    """Counters over the iterations with work. A prompt slot counts in an iteration that computes some of its prompt."""

    steps: int = 0
    decode_only_steps: int = 0
    decode_tokens: int = 0
    prompt_tokens: int = 0
    waiting_prompt_slots_sum: int = 0
    max_waiting_prompt_slots: int = 0
    started_prompt_slots: int = 0
    continued_prompt_slots: int = 0
    ttft_deferred_decode_slots: int = 0
    prompt_tokens_per_step: list[int] = field(default_factory=list)
    decode_tokens_per_step: list[int] = field(default_factory=list)
    waiting_prompt_slots_per_step: list[int] = field(default_factory=list)

    def record(self, decodes: int, deferred: int, started: int, shares: Sequence[int]) -> None:
        """Book one iteration: decode tokens, decodes held back, prompts begun, and the prompt tokens of each slot that had any."""
        tokens = sum(shares)
        self.steps += 1
        self.decode_only_steps += not shares
        self.decode_tokens += decodes
        self.prompt_tokens += tokens
        self.waiting_prompt_slots_sum += len(shares)
        self.max_waiting_prompt_slots = max(self.max_waiting_prompt_slots, len(shares))
        self.started_prompt_slots += started
        self.continued_prompt_slots += len(shares) - started
        self.ttft_deferred_decode_slots += deferred
        self.prompt_tokens_per_step.append(tokens)
        self.decode_tokens_per_step.append(decodes)
        self.waiting_prompt_slots_per_step.append(len(shares))


class Traced(LlamaCppScheduler):
    """The scheduler with the reference's counters and histograms of its iterations."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.trace = AdmissionTrace()

    def schedule(self) -> Iteration:
        iteration = super().schedule()
        decoding = [r for r in self.slots if r is not None and r.generated_tokens and r.computed_tokens + 1 == r.known_tokens]
        shares = [(request, tokens) for request, tokens in iteration.scheduled if request not in decoding]
        if iteration.scheduled:
            decodes = len(iteration.scheduled) - len(shares)
            started = sum(request.computed_tokens == request.cached_tokens for request, _ in shares)
            self.trace.record(decodes, len(decoding) - decodes, started, [tokens for _, tokens in shares])
        return iteration


def table(name: str) -> list[dict[str, str]]:
    """A table of the reference."""
    text = (files("scenarios") / "data" / "reference" / "gb10" / name).read_text()
    return list(csv.DictReader(text.splitlines()))


def options(variant: str) -> dict[str, Any]:
    """Scheduler options of a variant as the reference spells it (environment settings)."""
    if variant == "default":
        return {}
    pairs = [setting.split("=") for setting in variant.split()]
    return {NAMES[name]: value == "1" if NAMES[name] == "prefill_first" else int(value) for name, value in pairs}


def burst(concurrency: int, prompt_tokens: int) -> list[Request]:
    """Requests of equal share of `prompt_tokens`, sent at once."""
    shares = [prompt_tokens * (i + 1) // concurrency - prompt_tokens * i // concurrency for i in range(concurrency)]
    return [Request(str(i), 0.0, share, GENERATED) for i, share in enumerate(shares)]


def first_tokens(
    scheduler: Scheduler, requests: list[Request], ticks_of: Callable[[Iteration], int], first: int = 32, to_the_end: bool = True
) -> tuple[int, dict[str, int]]:
    """(ticks of the run, ticks of each request's first token), with `first` requests there at the first decision."""
    for request in requests[:first]:
        scheduler.add(request)
    late, now, found = requests[first:], 0, dict[str, int]()
    while scheduler.unfinished() and (to_the_end or any(not request.generated_tokens for request in requests)):
        iteration = scheduler.schedule()
        now += ticks_of(iteration)
        for request in scheduler.complete(iteration).sampled:
            found.setdefault(request.request_id, now)
        while late:
            scheduler.add(late.pop(0))
    return now, found


def served(
    concurrency: int,
    prompt_tokens: int,
    settings: dict[str, Any],
    ticks_of: Callable[[Iteration], int] | None = None,
    first: int = 32,
    to_the_end: bool = True,
) -> tuple[AdmissionTrace, dict[str, float]]:
    """(admission trace, served metrics under the reference's names; empty without step times), with `first` requests
    in slots at the first decision. Not `to_the_end`, it stops at the last first token, after which nothing is held back.
    """
    config = EngineConfig(
        scheduler="llamacpp",
        max_num_seqs=concurrency,
        max_num_batched_tokens=2048,
        max_model_len=1024,
        options={"prompt_tail_tokens": 4, **settings},
    )
    scheduler = Traced(config)
    now, first_ticks = first_tokens(scheduler, burst(concurrency, prompt_tokens), ticks_of or (lambda _: 0), first, to_the_end)
    first_s = {name: ticks * TICK_S for name, ticks in first_ticks.items()}
    if ticks_of is None:
        return scheduler.trace, {}
    wall_s, ttft_max_s = now * TICK_S, max(first_s.values())
    return scheduler.trace, {
        "wall_s": wall_s,
        "agg_tps": concurrency * GENERATED / wall_s,
        "decode_agg_tps": concurrency * GENERATED / (wall_s - ttft_max_s),
        "prefill_tps": prompt_tokens / ttft_max_s,
        "ttft_mean_ms": 1e3 * sum(first_s.values()) / concurrency,
        "ttft_max_ms": 1e3 * ttft_max_s,
    }
