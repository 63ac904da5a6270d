"""Workloads drawn from distributions: independent calls, and sessions whose context grows turn by turn."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.units import MAX_TOKENS
from sim.workload.arrivals import with_arrivals
from sim.workload.content import Content, Grown, SystemPrompt
from sim.workload.rate_curve import RateCurve
from sim.workload.trace import Trace, TraceBuilder

MAX_CV = 100.0


@dataclass(frozen=True, slots=True)
class Synthetic:
    """`num_prompts` calls of `input_tokens` new tokens in and `output_tokens` out.

    Lengths are fixed, log-normal with these means and the coefficient of variation `length_cv`, or uniform within `range_ratio` of them.
    `prefix_tokens` are a system prompt in front of the input, of which there are `prefixes`: sessions (single calls) have one each, as many
    of every one as can be, in random order. With `turns` > 1, calls form sessions of that many: each turn's prompt is all that was said
    before plus its input, sent after the previous turn has finished and a think time, exponential with mean `think_s`.
    Rate (or rate curve) and burstiness are those of the sessions' (single calls') starts. `most_tokens` is the longest prompt and output
    that the engine takes (None: any): a session that outgrows it is found before the rest is drawn.
    """

    num_prompts: int
    input_tokens: int = 1024
    output_tokens: int = 128
    length_cv: float = 0.0
    prefix_tokens: int = 0
    turns: int = 1
    think_s: float = 0.0
    rate_per_s: float | RateCurve = math.inf
    burstiness: float = 1.0
    most_tokens: int | None = None
    range_ratio: float = 0.0
    prefixes: int = 1

    @property
    def calls(self) -> float:
        """Calls per session."""
        return float(self.turns)


def draw_lengths(mean: int, cv: float, count: int, rng: np.random.Generator, range_ratio: float = 0.0) -> NDArray[np.int64]:
    """`count` lengths of at least 1 token: `mean` when `cv` is 0, else log-normal with that mean and coefficient of variation.

    With `range_ratio` r uniform whole numbers from floor(mean (1 - r)) to ceil(mean (1 + r)), as `vllm bench serve --random-range-ratio`.
    """
    if not 0.0 <= range_ratio < 1.0:
        raise UsageError(f"random range ratio must lie in [0, 1), got {range_ratio:g}")
    if range_ratio:
        if cv:
            raise UsageError("lengths have a range ratio or a coefficient of variation, not both")
        low, high = math.floor(mean * (1.0 - range_ratio)), math.ceil(mean * (1.0 + range_ratio))
        return np.maximum(1, rng.integers(low, high + 1, size=count))
    if not 0.0 <= cv <= MAX_CV:
        raise UsageError(f"length coefficient of variation must lie in 0..{MAX_CV:g}, got {cv:g}")
    if cv == 0.0:
        return np.full(count, mean, dtype=np.int64)
    sigma2 = math.log1p(cv * cv)
    drawn = rng.lognormal(math.log(mean) - sigma2 / 2, math.sqrt(sigma2), size=count)
    return np.maximum(1, np.rint(drawn)).astype(np.int64)


def draw(spec: Synthetic, rng: np.random.Generator) -> Trace:
    """The calls of `spec`. Raises UsageError for counts below 1 or times that are not finite."""
    if spec.num_prompts < 1 or spec.turns < 1 or spec.input_tokens < 1 or spec.output_tokens < 1 or spec.prefix_tokens < 0:
        raise UsageError("prompts, turns, input and output lengths must be at least 1, and the prefix not negative")
    if max(spec.input_tokens, spec.output_tokens, spec.prefix_tokens) > MAX_TOKENS:
        raise UsageError("input, output and prefix lengths must be at most 2**32 tokens")
    if not 0.0 <= spec.think_s < math.inf:
        raise UsageError(f"think time must be a finite time >= 0, got {spec.think_s:g} s")
    inputs = draw_lengths(spec.input_tokens, spec.length_cv, spec.num_prompts, rng, spec.range_ratio)
    outputs = draw_lengths(spec.output_tokens, spec.length_cv, spec.num_prompts, rng, spec.range_ratio)
    pauses = rng.exponential(spec.think_s, size=spec.num_prompts) if spec.think_s else np.zeros(spec.num_prompts)
    systems = _systems(spec, rng)
    if spec.turns == 1 and max(inputs.max() + spec.prefix_tokens, outputs.max()) <= MAX_TOKENS:
        count = spec.num_prompts
        none, ids = np.zeros(count), list(map(str, range(count)))
        calls = Trace(none, inputs + spec.prefix_tokens, outputs, none, ids, [None] * count, array("q", bytes(8 * count)), systems)
        return with_arrivals(calls, spec.rate_per_s, spec.burstiness, rng)
    builder = TraceBuilder("synthetic")
    context = 0
    for i, (prompt_n, output_n, pause) in enumerate(zip(inputs.tolist(), outputs.tolist(), pauses.tolist(), strict=True)):
        turn = i % spec.turns
        before = context if turn else spec.prefix_tokens
        builder.add(
            f"call {i}",
            arrival_s=None if turn else 0.0,
            prompt_tokens=before + prompt_n,
            output_tokens=output_n,
            session_id=str(i // spec.turns) if spec.turns > 1 else None,
            turn=turn,
            think_s=pause if turn else 0.0,
            content=Grown(context) if turn else systems[i // spec.turns],
        )
        context = before + prompt_n + output_n
        if turn and spec.most_tokens is not None and context > spec.most_tokens:
            raise UsageError(
                f"a session of {spec.turns} turns grows without end: {context} tokens after {turn + 1}, "
                f"more than max_model_len {spec.most_tokens}"
            )
    return with_arrivals(builder.build(), spec.rate_per_s, spec.burstiness, rng)


def _systems(spec: Synthetic, rng: np.random.Generator) -> list[Content | None]:
    """The system prompt of each session, as a call of its own is one. UsageError for more of them than sessions, or for none in length."""
    sessions = -(-spec.num_prompts // spec.turns)
    if not 1 <= spec.prefixes <= sessions:
        raise UsageError(f"the number of prefixes must be 1 to the {sessions} sessions or single requests, got {spec.prefixes}")
    if not spec.prefix_tokens:
        if spec.prefixes > 1:
            raise UsageError("several prefixes need a length: --random-prefix-len")
        return [None] * sessions
    if spec.prefixes == 1:
        return [SystemPrompt("system", spec.prefix_tokens)] * sessions
    known = [SystemPrompt(f"system {i}", spec.prefix_tokens) for i in range(spec.prefixes)]
    return [known[i] for i in (rng.permutation(sessions) % spec.prefixes).tolist()]


def resampled(trace: Trace, count: int, rng: np.random.Generator) -> Trace:
    """`count` calls with lengths drawn from the trace's own (with replacement), all at 0, sharing nothing: an empirical distribution."""
    if count < 1:
        raise UsageError(f"number of prompts must be at least 1, got {count}")
    builder = TraceBuilder("resampled")
    for i in rng.integers(len(trace), size=count).tolist():
        builder.add(
            f"call {len(builder)}",
            arrival_s=0.0,
            prompt_tokens=int(trace.prompt_tokens[i]),
            output_tokens=int(trace.output_tokens[i]),
        )
    return builder.build()


def with_think_time(trace: Trace, mean_s: float, rng: np.random.Generator) -> Trace:
    """The trace with exponential pauses of this mean added before every turn that follows its session's previous one."""
    if not 0.0 <= mean_s < math.inf:
        raise UsageError(f"think time must be a finite time >= 0, got {mean_s:g} s")
    if not mean_s:
        return trace
    follows = np.isnan(trace.arrival_s)
    pauses = np.where(follows, rng.exponential(mean_s, size=len(trace)), 0.0)
    return replace(trace, think_s=trace.think_s + pauses)
