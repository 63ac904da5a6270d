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

Not fitted, but asked for: `subagents` of a turn are geometric with that mean, so that they come in crowds. Each is a session of its own:
the system prompt, a task as long as a turn's new tokens, and TURNS turns in the mean. The turn waits for all of them. `compact_at`: a
session that would grow beyond it sends its context once more, gets SUMMARY_TOKENS back, and goes on with the system prompt and those.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.units import MAX_TOKENS
from sim.workload.arrivals import with_arrivals
from sim.workload.content import Grown, SystemPrompt
from sim.workload.rate_curve import RateCurve
from sim.workload.synthetic import draw_lengths
from sim.workload.trace import Trace, TraceBuilder

SESSIONS_PER_S = 274 / 600
TURNS = 1214 / 274
TURNS_LOG_SD = 1.2
THINK_LOG_SD = 0.57
OPENING_LOG_SD = 1.26
INPUT_LOG_SD = 1.85
OUTPUT_LOG_SD = 1.0
KEPT = (1.0, 2.0)
SUMMARY_TOKENS = 2000  # of a context that is compacted: assumed
MOST_CALLS = 10_000_000  # as many as may be drawn otherwise


@dataclass(frozen=True, slots=True)
class AgentSessions:
    """`num_sessions` sessions of `turns` turns in the mean; starts as in Synthetic, all other numbers are means too.

    A first prompt is the system prompt of `prefix_tokens` and `opening_tokens`; each later turn adds `input_tokens`, each answer
    `output_tokens`. Between turns `think_s` seconds pass. `edited_share` of the later turns repeat only a part of their context.
    A prompt and its answer have at most `most_tokens`: a session that would outgrow them goes on with a context as short as its first.
    First prompts have at most `longest_opening` tokens beside the system prompt (None: half of `most_tokens` with it; all, where
    `opening_cv` says how they vary). `subagents` and `compact_at` are as this module says.
    """

    num_sessions: int = 274
    turns: float = TURNS
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
    opening_cv: float | None = None  # coefficient of variation of first prompts; None: as fitted
    subagents: float = 0.0
    compact_at: int | None = None

    @property
    def calls(self) -> float:
        """Calls per session in the mean, compactions not counted."""
        return self.turns + (self.turns - 1.0) * self.subagents * TURNS

    @property
    def limit(self) -> int:
        """Tokens beyond which no prompt and answer goes, compactions not counted."""
        return self.most_tokens if self.compact_at is None else self.compact_at


@dataclass(frozen=True, slots=True)
class AgentMixture:
    """`num_sessions` sessions of several kinds of agents: a share and a kind each, whose count and rate say nothing."""

    num_sessions: int
    kinds: tuple[tuple[float, AgentSessions], ...]
    rate_per_s: float | RateCurve = SESSIONS_PER_S
    burstiness: float = 1.0

    @property
    def calls(self) -> float:
        """Calls per session in the mean."""
        return sum(share * kind.calls for share, kind in self.kinds) / sum(share for share, _ in self.kinds)


class Call(NamedTuple):
    """A call of a session: it repeats `shared` tokens of the one before, after a pause and after `crowd` subagents have ended."""

    prompt: int
    output: int
    shared: int
    think_s: float
    crowd: int


def draw_sessions(spec: AgentSessions | AgentMixture, rng: np.random.Generator) -> Trace:
    """The calls of `spec`, session by session. Raises UsageError for numbers out of range."""
    kinds = ((1.0, spec),) if isinstance(spec, AgentSessions) else spec.kinds
    kind_of = np.zeros(max(spec.num_sessions, 0), dtype=np.int64)
    if len(kinds) > 1:
        shares = np.array([share for share, _ in kinds])
        kind_of = rng.choice(len(kinds), size=spec.num_sessions, p=shares / shares.sum())
    drawn = []
    for number, (_, kind) in enumerate(kinds):
        those = replace(kind, num_sessions=max(int((kind_of == number).sum()), min(spec.num_sessions, 1)))
        _check(those)
        drawn.append((f"agent {number}" if number else "agent", kind.prefix_tokens, *_sessions(those, rng)))
    builder = TraceBuilder("agent sessions")
    for session, number in enumerate(kind_of.tolist()):
        group, prefix, sessions, subagents = drawn[number]
        _add(builder, str(session), next(sessions), SystemPrompt(group, prefix), subagents)
    return with_arrivals(builder.build(), spec.rate_per_s, spec.burstiness, rng)


def _add(
    builder: TraceBuilder,
    session: str,
    calls: list[Call],
    system: SystemPrompt,
    subagents: Iterator[list[Call]],
    after: tuple[str, ...] = (),
) -> None:
    """A session's calls, the first one after those named, and behind each the subagents that wait for it and are waited for."""
    for turn, call in enumerate(calls):
        before, joins = str(len(builder) - 1), []
        for place in range(call.crowd):
            _add(builder, f"{session}/{turn}.{place}", next(subagents), system, subagents, (before,))
            joins.append(str(len(builder) - 1))
        builder.add(
            f"session {session}, turn {turn}",
            arrival_s=None if turn or after else 0.0,
            prompt_tokens=call.prompt,
            output_tokens=call.output,
            session_id=session,
            turn=turn,
            think_s=call.think_s if turn else 0.0,
            content=Grown(call.shared) if turn else system,
            after=tuple(joins) if turn else after,
        )


def _sessions(spec: AgentSessions, rng: np.random.Generator) -> tuple[Iterator[list[Call]], Iterator[list[Call]]]:
    """The calls of each session, and those of each subagent that they name."""
    turns = _turn_counts(spec, rng)
    openings = _openings(spec, len(turns), rng)
    pauses = _lognormal(spec.think_s, THINK_LOG_SD, int(turns.sum()), rng)
    count = int(turns.sum())
    inputs = _tokens(spec.input_tokens, INPUT_LOG_SD, count, spec.limit, rng)
    outputs = _tokens(spec.output_tokens, OUTPUT_LOG_SD, count, spec.limit // 2, rng)
    kept = np.where(rng.random(count) < spec.edited_share, rng.beta(*KEPT, size=count), 1.0)
    crowds = rng.geometric(1.0 / (1.0 + spec.subagents), size=count) - 1 if spec.subagents else np.zeros(count, dtype=np.int64)
    crowds[np.cumsum(turns) - turns] = 0  # first turns
    draws = zip(*(each.tolist() for each in (inputs, outputs, kept, pauses, crowds)), strict=True)
    sessions = (_session(spec, first, list(islice(draws, n))) for first, n in zip(openings.tolist(), turns.tolist(), strict=True))
    if not crowds.any():
        return sessions, iter(())
    alone = replace(spec, num_sessions=int(crowds.sum()), turns=TURNS, subagents=0.0, opening_tokens=spec.input_tokens, opening_cv=None)
    return sessions, _sessions(alone, rng)[0]


def _session(spec: AgentSessions, first: int, draws: list[tuple[int, int, float, float, int]]) -> list[Call]:
    """The calls of a session, from new tokens, answer, share of the context kept, pause and subagents of each turn."""
    calls: list[Call] = []
    for new, answer, kept, pause, crowd in draws:
        prompt, shared, output = first, 0, min(answer, spec.limit - first)
        if calls:
            context = calls[-1].prompt + calls[-1].output
            if context + new + answer <= spec.limit:
                prompt, shared, output = context + new, spec.prefix_tokens + int(kept * (context - spec.prefix_tokens)), answer
            elif spec.compact_at is None:
                shared = spec.prefix_tokens
            else:
                calls.append(Call(context, SUMMARY_TOKENS, context, 0.0, 0))
                shared, output = spec.prefix_tokens, answer
                prompt = min(shared + SUMMARY_TOKENS + new, spec.limit - answer)
        calls.append(Call(prompt, output, shared, pause, crowd))
    return calls


def _openings(spec: AgentSessions, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Tokens of first prompts."""
    if spec.opening_cv is None:
        longest = spec.limit // 2 - spec.prefix_tokens if spec.longest_opening is None else spec.longest_opening
        return spec.prefix_tokens + _tokens(spec.opening_tokens, OPENING_LOG_SD, count, longest, rng)
    longest = spec.limit - 1 if spec.longest_opening is None else spec.prefix_tokens + spec.longest_opening
    return np.minimum(spec.prefix_tokens + draw_lengths(spec.opening_tokens, spec.opening_cv, count, rng), longest)


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
    if not 0.0 <= spec.subagents <= MOST_CALLS or spec.calls * spec.num_sessions > MOST_CALLS:
        raise UsageError(f"subagents of a turn must be 0 or more in the mean, with at most {MOST_CALLS:,} calls, got {spec.subagents:g}")
    if min(spec.opening_tokens, spec.input_tokens, spec.output_tokens) < 1 or spec.prefix_tokens < 0:
        raise UsageError("opening, input and output lengths must be at least 1, and the prefix not negative")
    if max(spec.opening_tokens, spec.input_tokens, spec.output_tokens, spec.most_tokens) > MAX_TOKENS:
        raise UsageError("opening, input, output and context lengths must be at most 2**32 tokens")
    if not 0.0 <= spec.edited_share <= 1.0:
        raise UsageError(f"the share of edited turns must lie in 0..1, got {spec.edited_share:g}")
    if not 0.0 <= spec.think_s < math.inf:
        raise UsageError(f"think time must be a finite time >= 0, got {spec.think_s:g} s")
    _check_contexts(spec)


def _check_contexts(spec: AgentSessions) -> None:
    if spec.compact_at is not None and spec.compact_at + SUMMARY_TOKENS > spec.most_tokens:
        raise UsageError(
            f"agents that compact at {spec.compact_at} tokens lack room for {SUMMARY_TOKENS} more in contexts of {spec.most_tokens}"
        )
    if spec.prefix_tokens + (0 if spec.compact_at is None else SUMMARY_TOKENS) >= spec.limit // 2:
        raise UsageError(f"a system prompt of {spec.prefix_tokens} tokens leaves agents no room in contexts of {spec.limit}")
    if spec.longest_opening is not None and not 1 <= spec.longest_opening < spec.limit - spec.prefix_tokens:
        raise UsageError(f"first prompts of {spec.longest_opening} tokens do not fit into contexts of {spec.limit}")
    if spec.opening_cv is not None and spec.prefix_tokens + spec.opening_tokens >= spec.limit:
        raise UsageError(f"first prompts of {spec.prefix_tokens} + {spec.opening_tokens} tokens do not fit into contexts of {spec.limit}")
