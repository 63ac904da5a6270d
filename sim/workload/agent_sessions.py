"""Agent sessions, drawn: most are short and fast, a few have many turns or contexts of more than 100,000 tokens.

A session is one agent at work. Each turn sends all that was said so far and something new, after the answer to the turn before has come
through and a tool has run. Some turns find their context rewritten (compacted, or that of another part of the agent): they repeat only the
first part of it. All sessions begin with the same system prompt.

The defaults of AgentSessions and the sd below are fitted: lengths, gaps and counts are log-normal with the mean given; sd is the
standard deviation of the logarithm.

    num_sessions, rate_per_s  published: 274 sessions in 600 s (trace w600_r0.0015_st30 of a routing study, 8 H100, Qwen3-Coder-30B-A3B)
    turns                     1 + Poisson(log-normal); mean: published, 1,214 requests of 274 sessions. Sd: the sessions of one worker
                              had 22, 17, 15, 8, 7 and 5 turns, others less: the likelihood is flat from 1.0 to 1.8
    think_s                   gaps between completions in 16 recorded sessions (tau2-retail, AppWorld): they include the next answer
    prefix_tokens             what the first prompts of ten tau2-retail sessions have in common
    opening_tokens            sd: first prompts of the Mooncake conversation trace. Mean: 8.6 % of the published requests took more
                              than 10 s to their first token; the slowest all had prompts of 100,000 tokens or more
    input_tokens              sd: new tokens a turn in 18 recorded sessions. Mean: published prompts grow from 100,000 to 130,000
                              tokens in some ten turns
    output_tokens             sd: AppWorld. Mean: the published median E2E latency of 1.8 s, at 8 ms a token
    edited_share              half of the prompt tokens found in cache, as published, when simulated on those GPUs
    kept share of an edit     Beta(1, 2), mean 1/3: what Mooncake's requests repeat of an earlier one that they do not repeat wholly
    most_tokens               published: max_model_len
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.units import MAX_TOKENS
from sim.workload.arrivals import with_arrivals
from sim.workload.content import Grown, SystemPrompt
from sim.workload.rate_curve import RateCurve
from sim.workload.trace import Trace, TraceBuilder

SESSIONS_PER_S = 274 / 600
TURNS_LOG_SD = 1.2
THINK_LOG_SD = 0.57
OPENING_LOG_SD = 1.26
INPUT_LOG_SD = 1.85
OUTPUT_LOG_SD = 1.0
KEPT = (1.0, 2.0)
MOST_CALLS = 10_000_000  # as many as may be drawn otherwise


@dataclass(frozen=True, slots=True)
class AgentSessions:
    """`num_sessions` sessions of `turns` turns in the mean; starts as in Synthetic, all other numbers are means too.

    A first prompt is the system prompt of `prefix_tokens` and `opening_tokens`; each later turn adds `input_tokens`, each answer
    `output_tokens`. Between turns `think_s` seconds pass. `edited_share` of the later turns repeat only a part of their context.
    A prompt and its answer have at most `most_tokens`: a session that would outgrow them goes on with a context as short as its first.
    First prompts have at most `longest_opening` tokens beside the system prompt (None: half of `most_tokens` with it).
    """

    num_sessions: int = 274
    turns: float = 1214 / 274
    think_s: float = 5.3
    prefix_tokens: int = 5200
    opening_tokens: int = 22_000
    input_tokens: int = 3000
    output_tokens: int = 180
    edited_share: float = 0.6
    rate_per_s: float | RateCurve = SESSIONS_PER_S
    burstiness: float = 1.0
    most_tokens: int = 200_000
    longest_opening: int | None = None


def draw_sessions(spec: AgentSessions, rng: np.random.Generator) -> Trace:
    """The calls of `spec`, session by session. Raises UsageError for numbers out of range."""
    _check(spec)
    turns = _turn_counts(spec, rng)
    longest = spec.most_tokens // 2 - spec.prefix_tokens if spec.longest_opening is None else spec.longest_opening
    openings = _tokens(spec.opening_tokens, OPENING_LOG_SD, len(turns), longest, rng)
    pauses = _lognormal(spec.think_s, THINK_LOG_SD, int(turns.sum()), rng)
    calls = _lengths(spec, turns, spec.prefix_tokens + openings, rng)
    system = SystemPrompt("agent", spec.prefix_tokens)
    builder = TraceBuilder("agent sessions")
    for (session, turn, prompt, output, shared), pause in zip(calls, pauses.tolist(), strict=True):
        builder.add(
            f"session {session}, turn {turn}",
            arrival_s=None if turn else 0.0,
            prompt_tokens=prompt,
            output_tokens=output,
            session_id=str(session),
            turn=turn,
            think_s=pause if turn else 0.0,
            content=Grown(shared) if turn else system,
        )
    return with_arrivals(builder.build(), spec.rate_per_s, spec.burstiness, rng)


def _lengths(
    spec: AgentSessions, turns: NDArray[np.int64], first_prompts: NDArray[np.int64], rng: np.random.Generator
) -> Iterator[tuple[int, int, int, int, int]]:
    """Session, turn, prompt tokens, output tokens and tokens shared with the turn before, of every call."""
    count = int(turns.sum())
    inputs = _tokens(spec.input_tokens, INPUT_LOG_SD, count, spec.most_tokens, rng).tolist()
    outputs = _tokens(spec.output_tokens, OUTPUT_LOG_SD, count, spec.most_tokens // 2, rng).tolist()
    kept = np.where(rng.random(count) < spec.edited_share, rng.beta(*KEPT, size=count), 1.0).tolist()
    call = 0
    for session, (first, number) in enumerate(zip(first_prompts.tolist(), turns.tolist(), strict=True)):
        prompt, shared = first, 0
        for turn in range(number):
            output = outputs[call]
            if turn:
                context = prompt + outputs[call - 1]
                prompt = context + inputs[call]
                shared = spec.prefix_tokens + int(kept[call] * (context - spec.prefix_tokens))
                if prompt + output > spec.most_tokens:
                    prompt, shared = first, spec.prefix_tokens
            yield session, turn, prompt, output, shared
            call += 1


def _turn_counts(spec: AgentSessions, rng: np.random.Generator) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = 1 + rng.poisson(_lognormal(spec.turns - 1.0, TURNS_LOG_SD, spec.num_sessions, rng))
    return counts


def _tokens(mean: int, sd: float, count: int, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.clip(np.rint(_lognormal(mean, sd, count, rng)), 1, most).astype(np.int64)


def _lognormal(mean: float, sd: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return mean * rng.lognormal(-sd * sd / 2, sd, size=count)


def _check(spec: AgentSessions) -> None:
    if spec.num_sessions < 1 or not 1.0 <= spec.turns <= MOST_CALLS / spec.num_sessions:
        raise UsageError(f"there must be at least one session and one turn, and at most {MOST_CALLS:,} calls")
    if min(spec.opening_tokens, spec.input_tokens, spec.output_tokens) < 1 or spec.prefix_tokens < 0:
        raise UsageError("opening, input and output lengths must be at least 1, and the prefix not negative")
    if max(spec.opening_tokens, spec.input_tokens, spec.output_tokens, spec.most_tokens) > MAX_TOKENS:
        raise UsageError("opening, input, output and context lengths must be at most 2**32 tokens")
    if spec.prefix_tokens >= spec.most_tokens // 2:
        raise UsageError(f"a system prompt of {spec.prefix_tokens} tokens leaves agents no room in contexts of {spec.most_tokens}")
    if spec.longest_opening is not None and not 1 <= spec.longest_opening < spec.most_tokens - spec.prefix_tokens:
        raise UsageError(f"first prompts of {spec.longest_opening} tokens do not fit into contexts of {spec.most_tokens}")
    if not 0.0 <= spec.edited_share <= 1.0:
        raise UsageError(f"the share of edited turns must lie in 0..1, got {spec.edited_share:g}")
    if not 0.0 <= spec.think_s < math.inf:
        raise UsageError(f"think time must be a finite time >= 0, got {spec.think_s:g} s")
