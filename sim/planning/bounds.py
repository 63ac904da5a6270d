"""Analytic bounds of a capacity plan: how many replicas a load needs at least, without simulation.

An SLO puts a deadline on most requests: `ttft:p99<2s` says that 99 % of the prompts are computed at most 2 s after they came, so all that
work lies between the first arrival and 2 s after the last. Work at best: prompts share full iterations; decodes run in the largest batch
that memory, batch cap and the TPOT limit allow. Each trial has its own workload and its own draw of the rates. A count that too many
trials rule out is out, as in a race.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.cluster.admission import NO_LIMITS
from sim.cluster.pools import DECODE, PREFILL
from sim.cost.batch import BatchShape, chunk_sums, decode_batch, from_sums
from sim.cost.rates import Rates
from sim.cost.step_time import step_time_s
from sim.engine.host_tier import HOST_OPTIONS
from sim.errors import SimctlError, UsageError
from sim.planning.choices import Choice
from sim.planning.race import CandidateState
from sim.planning.trials import trace_of
from sim.results.chance import CERTAINTY, ruled_out
from sim.slo import Condition
from sim.study.deployment import Deployment
from sim.study.lasting import can_last
from sim.study.run import check_all_fit, planned
from sim.study.studied import PlannedPool
from sim.workload.trace import Trace

Floats = NDArray[np.float64]
TRIALS = 60  # 60 that all rule a count out, or three quarters of them, are more than enough
ENOUGH = next(n for n in range(1, TRIALS) if not ruled_out(CERTAINTY, n, TRIALS))
LONG = 1_000  # a quarter of the requests that a lasting load's work is averaged over
SLACK = 0.9  # work at best is still that much less: waves and padding are not smooth


@dataclass(frozen=True, slots=True)
class Deadline:
    """A share of the requests has to have its first token, or its last one, within a time; NaN where nothing is said."""

    first_share: float = 0.0
    first_s: float = math.inf
    token_share: float = 0.0
    token_s: float = math.inf

    @property
    def finish_share(self) -> float:
        """Share of the requests of which both first token and time per token are bounded."""
        return max(self.first_share + self.token_share - 1.0, 0.0)


def deadline_of(conditions: Sequence[Condition], goodput: Mapping[str, float]) -> Deadline:
    """Deadline of most requests, by conditions on percentiles and on the share of good requests. The strictest share of each counts."""
    first, token = (0.0, math.inf), (0.0, math.inf)
    for condition in conditions:
        for name, share, limit_s in _said(condition, goodput):
            if name == "ttft":
                first = max(first, (share, limit_s), key=lambda each: each[0])
            elif name == "tpot":
                token = max(token, (share, limit_s), key=lambda each: each[0])
    return Deadline(*first, *token)


def _said(condition: Condition, goodput: Mapping[str, float]) -> list[tuple[str, float, float]]:
    if condition.figure == "good":
        return [(name, condition.limit, 1e-3 * limit) for name, limit in goodput.items()]
    kind, name = condition.figure.removesuffix("_ms").split("_") if condition.figure.endswith("_ms") else ("", "")
    share = 0.5 if kind == "median" else float(kind[1:]) / 100.0 if kind[:1] == "p" else 0.0
    return [(name, share, 1e-3 * condition.limit)] if share else []


class Bounds:
    """Bounds of many choices under one workload; what they have in common is computed once."""

    def __init__(self, conditions: Sequence[Condition], for_s: float | None = None) -> None:
        self._conditions, self._for_s, self._lasts = conditions, for_s, False
        self._applies = True
        self._traces: list[Trace] = []
        self._deadline = Deadline()
        self._loads: dict[tuple[int, int], list[OfferedLoad]] = {}
        self._needs: dict[Any, Floats] = {}
        self._unloaded: dict[Any, Floats] = {}
        self._steps: dict[Any, Floats] = {}  # decode steps, of whichever pool

    def state(self, choice: Choice) -> CandidateState:
        """State of a choice before any trial: out if its model does not fit, or if even idle replicas are too slow; else the units
        that the load rules out.
        """
        study = choice.study
        if not self._traces:
            self._lasts = self._for_s is None and can_last(study.workload)
            if self._lasts and study.workload.redraw is not None:
                self._traces = [study.workload.redraw(0, 4 * LONG)]
            elif self._for_s is not None and study.workload.redraw is not None:  # the bound of a longer load is no lower
                requests = min(math.ceil(self._for_s * study.workload.redraw.rate_per_s), LONG)
                self._traces = [study.workload.redraw(trial, requests) for trial in range(TRIALS)]
            else:
                self._traces = [trace_of(study, trial) for trial in range(TRIALS if study.workload.redraw else 1)]
            self._deadline = deadline_of(self._conditions, study.goodput)
            # clients that wait for their answers, and requests that are turned away, set no deadline
            self._applies = study.workload.max_concurrency is None and study.deployment.admission == NO_LIMITS
        try:
            pools = planned(study)
            check_all_fit(study, study.workload.trace, pools)
        except (SimctlError, UsageError) as error:
            return CandidateState(why=str(error))
        last = next((pool for pool in pools if pool.spec.role == DECODE), pools[0])
        unloaded = self._unloaded_s(last) / (1 + int(last.config.options.get("draft_tokens", 0)))  # at best, every draft is accepted
        for condition in self._conditions:
            if condition.figure.endswith("tpot_ms") and int((1e3 * unloaded <= condition.limit).sum()) < ENOUGH:
                fastest = 1e3 * float(np.median(unloaded))
                why = f"{condition.text}: a token takes {fastest:.3g} ms at batch 1"
                return CandidateState(why=why, unloaded_s=fastest / 1e3)
        units = max(float(self._units(pool, place, pools)) for place, pool in enumerate(pools))
        return CandidateState(fails=max(math.ceil(units) - 1, 0), unloaded_s=float(np.median(unloaded)))

    def _units(self, pool: PlannedPool, place: int, pools: Sequence[PlannedPool]) -> float:
        """The units of which this pool's replicas are enough in so many trials that 0.95 is not ruled out."""
        longest = pool.spec.max_prompt_tokens
        shortest = max((p.spec.max_prompt_tokens or 0 for p in pools[:place] if p.spec.role == pool.spec.role), default=0)
        d, config = pool.spec.deployment, pool.config
        limits = (
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.num_gpu_blocks,
            config.scheduler,
            str(d.limits.attention),
            str(config.options),
            d.limits.draft,
        )
        key = (id(pool.rates), d.model.name, d.tp, d.precision, limits, pool.spec.role, shortest, longest)
        if key not in self._needs:
            self._needs[key] = np.sort(self._replicas(pool, shortest, longest or 2**60))
        needs = self._needs[key]
        # the least count that enough trials allow: with fewer, the chance is certainly below 0.95
        return float(needs[ENOUGH - 1]) / d.replicas

    def _replicas(self, pool: PlannedPool, shortest: int, longest: int) -> Floats:
        """Replicas that each trial needs at least; no whole numbers."""
        other = pool.config.options.keys() - HOST_OPTIONS.keys()  # host RAM saves prefills alone
        if not self._applies or pool.spec.deployment.limits.draft or other:
            return np.zeros(TRIALS)
        if (shortest, longest) not in self._loads:
            of = _lasting_load if self._lasts else _load
            found = [of(trace, shortest, longest, self._deadline) for trace in self._traces]
            self._loads[shortest, longest] = [found[trial % len(found)] for trial in range(TRIALS)]
        times = _Times(pool, self._deadline, self._steps)
        return SLACK * np.array([times.needed(load, trial) for trial, load in enumerate(self._loads[shortest, longest])])

    def _unloaded_s(self, pool: PlannedPool) -> Floats:
        """A decode step of one sequence of the shortest prompt, at the draw of each trial."""
        d, shortest = pool.spec.deployment, float(min(trace.prompt_tokens.min() for trace in self._traces))
        key = (id(pool.rates), d.limits.attention, d.tp)
        if key not in self._unloaded:
            self._unloaded[key] = _step_s(pool, decode_batch(d.model, 1.0, shortest, d.limits.attention))
        return self._unloaded[key]


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """Requests of a pool in a trial as sums, by the deadline.

    `prompt_tokens` have to be computed `first_s` after the first arrival, `tokens` beyond the first ones `last_s` after it; the others may
    be late.
    """

    first_s: float
    prompt_tokens: float
    typical_prompt: int  # rather short
    last_s: float
    tokens: float
    context: int  # of the mean token, its own output left out


NO_LOAD = OfferedLoad(1.0, 0.0, 1, 1.0, 0.0, 1)


def _load(trace: Trace, shortest: int, longest: int, deadline: Deadline) -> OfferedLoad:
    """The load of the prompts in this range. What waits for others, or is given up, has no deadline."""
    mine = (trace.prompt_tokens > shortest) & (trace.prompt_tokens <= longest)
    if np.isnan(trace.arrival_s).any() or trace.cancel_s or not mine.any():
        return NO_LOAD
    prompts, outputs, span = trace.prompt_tokens[mine], trace.output_tokens[mine], float(trace.arrival_s.max() - trace.arrival_s.min())
    first = last = 0.0
    if span and deadline.first_share and not any(content is not None for content in trace.contents):  # cached prompts cost nothing
        first = _smallest(prompts, len(trace), deadline.first_share)
    if span and deadline.finish_share:
        last = _smallest(outputs - 1, len(trace), deadline.finish_share)
    until = span + deadline.first_s + (deadline.token_s * float(outputs.max() - 1) if deadline.token_share else math.inf)
    context = float(np.average(prompts, weights=outputs))
    return OfferedLoad(span + deadline.first_s, first, _near(float(np.quantile(prompts, 0.25))), until, last, _near(context))


def _lasting_load(trace: Trace, shortest: int, longest: int, deadline: Deadline) -> OfferedLoad:
    """The load of the prompts in this range when it goes on for good: all of it has to be computed in the time in which it comes."""
    mine = (trace.prompt_tokens > shortest) & (trace.prompt_tokens <= longest)
    if not mine.any() or not (span := float(np.nanmax(trace.arrival_s))):  # calls that wait for others come as fast as their sessions
        return NO_LOAD
    prompts, outputs = trace.prompt_tokens[mine], trace.output_tokens[mine]
    cached = any(content is not None for content in trace.contents)  # such prompts cost nothing
    context = float(np.average(prompts, weights=outputs))
    typical = _near(float(np.quantile(prompts, 0.25)))
    return OfferedLoad(span, 0.0 if cached else float(prompts.sum()), typical, span, float((outputs - 1).sum()), _near(context))


def _smallest(sizes: NDArray[np.int64], requests: int, share: float) -> float:
    """The least that a share of all requests can be, when the others are among these."""
    late = requests - math.floor(share * requests)
    return float(np.sort(sizes)[: max(len(sizes) - late, 0)].sum())


class _Times:
    """Seconds per token of a pool at its best, at the draw of each trial."""

    def __init__(self, pool: PlannedPool, deadline: Deadline, steps: dict[Any, Floats]) -> None:
        self._pool, self._deadline, self._steps = pool, deadline, steps
        self._ladder: dict[int, list[tuple[float, Floats]]] = {}
        self._prefill: dict[int, Floats] = {}

    def needed(self, load: OfferedLoad, trial: int) -> float:
        """Replicas that hold the deadline of a trial at least."""
        role, needed = self._pool.spec.role, 0.0
        if role != DECODE and load.prompt_tokens:
            needed = load.prompt_tokens * self._prompt_s(load.typical_prompt)[trial] / load.first_s
        if role != PREFILL and load.tokens:
            needed = max(needed, load.tokens * self._token_s(load.context, trial) / load.last_s)
        return needed

    def _prompt_s(self, typical: int) -> Floats:
        """Per prompt token, in full iterations of prompts of this length."""
        pool = self._pool
        if typical not in self._prefill:
            budget, d = float(pool.config.max_num_batched_tokens), pool.spec.deployment
            chunk = min(float(typical), budget)
            whole = int(budget // chunk)
            sums = chunk_sums([(chunk, chunk, 1.0)] * whole, d.model.window)
            self._prefill[typical] = _step_s(pool, from_sums(0.0, 0.0, 0.0, 0.0, sums)) / (whole * chunk)
        return self._prefill[typical]

    def _token_s(self, context: int, trial: int) -> float:
        """Per output token, in the largest batch that the limits allow. Infinite where even one alone takes longer than the limit."""
        if context not in self._ladder:
            self._ladder[context] = self._batches(context)
        best = math.inf
        for batch, steps in self._ladder[context]:
            step = float(steps[trial])
            if step > self._deadline.token_s and best < math.inf:
                return min(best, step / batch)  # a batch in between just keeps the limit
            if step <= self._deadline.token_s:
                best = min(best, step / batch)
        return best

    def _batches(self, context: int) -> list[tuple[float, Floats]]:
        pool = self._pool
        most = max(min(float(pool.config.max_num_seqs), 2.0 * pool.config.kv_capacity_tokens / max(context, 1)), 1.0)
        return [(size, self._decode_s(size, context)) for size in (2.0**i for i in range(math.ceil(math.log2(most)) + 1))]

    def _decode_s(self, batch: float, context: int) -> Floats:
        """A decode step, the same whatever the limits."""
        pool, d = self._pool, self._pool.spec.deployment
        key = (id(pool.rates), d.model.name, d.tp, d.precision, str(d.limits.attention), batch, context)
        if key not in self._steps:
            self._steps[key] = _step_s(pool, decode_batch(d.model, batch, float(context), d.limits.attention))
        return self._steps[key]


def _near(tokens: float) -> int:
    """A round number at or below, so that trials share what is computed of it."""
    return int(2.0 ** (math.floor(4 * math.log2(max(tokens, 1.0))) / 4))


def _step_s(pool: PlannedPool, shape: BatchShape) -> Floats:
    """An iteration's time at the draw of each trial."""
    d: Deployment = pool.spec.deployment
    draws = pool.rates.draws
    trials = np.arange(TRIALS) % pool.rates.count
    rates = Rates(**{name: np.asarray(getattr(draws, name))[trials] for name in draws.names()})
    return np.broadcast_to(np.asarray(step_time_s(d.work(shape), rates, np), dtype=float), (TRIALS,))


def states_of(choices: Sequence[Choice], conditions: Sequence[Condition], most: int, for_s: float | None = None) -> list[CandidateState]:
    """State of every choice before any trial of a load that lasts `for_s` (None: for good); out, too, if it needs more than `most`
    GPUs.
    """
    bounds, found = Bounds(conditions, for_s), []
    for choice in choices:
        state = bounds.state(choice)
        if not state.why and choice.most(most) <= state.fails:
            state.why = f"needs more than {choice.short_of(state.fails + 1, most)}"
        found.append(state)
    return found
