"""Capacity planning: the cheapest of many deployments that meets an SLO with a stated probability.

Every choice is a deployment of which the number of replicas is open. The search takes the choice whose next count would be cheapest, and
tries that count: so the first that certainly meets the SLO is the cheapest, and dearer choices are tried no further than they must be. It
takes for granted that more replicas do not do worse. A trial is one draw of the rates and of the workload; all counts of all choices see
the same ones. Trials go on until the probability is known to lie above or below 0.95 (sim.results.chance).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np

from sim.cost.batch import decode_batch, mixed_batch
from sim.cost.step_time import step_time_s
from sim.errors import SimctlError, UsageError
from sim.planned import PlannedPool, Study, check_all_fit, planned, run_planned
from sim.results.chance import Chance, chance_by
from sim.results.metrics import summarise
from sim.slo import Condition

if TYPE_CHECKING:
    from collections.abc import Iterator

GALLOP_BELOW = 0.5  # chance from which on counts are tried one by one
CHUNK = 4  # trials that a process takes at a time


@dataclass(frozen=True, slots=True)
class Choice:
    """A deployment of any number of replicas; `price` is USD per hour of one of them."""

    name: str
    study: Study
    price: float

    def study_of(self, replicas: int) -> Study:
        """The study of so many replicas."""
        return replace(self.study, deployment=replace(self.study.deployment, replicas=replicas))


@dataclass(frozen=True, slots=True)
class Tried:
    """A count of a choice: the chance that it meets the SLO, and of each condition how much of its limit is used (mean over trials) and
    how often it is missed.
    """

    choice: int
    replicas: int
    chance: Chance
    used: tuple[float, ...]
    missed: tuple[float, ...]

    @property
    def binding(self) -> int:
        """The condition that is missed most often, or else that uses most of its limit."""
        return max(range(len(self.used)), key=lambda i: (self.missed[i], self.used[i]))


@dataclass(slots=True)
class Standing:
    """What is known of a choice: up to `fails` replicas do not certainly do, `holds` do (None: none found yet); or `why` it is out."""

    fails: int = 0
    holds: int | None = None
    why: str = ""
    tried: dict[int, Tried] = field(default_factory=dict)

    def next_count(self, most: int) -> int | None:
        """Replicas to try next: in the middle of what is open, else a quarter more while the chance is far off, else one more."""
        if self.why or self.holds == self.fails + 1:
            return None
        if self.holds is not None:
            return (self.fails + self.holds) // 2
        last = self.tried.get(self.fails)
        far = last is not None and last.chance.value < GALLOP_BELOW
        count = self.fails + (max(1, self.fails // 4) if far else 1)
        return min(count, most) if self.fails < most else None


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer: `winner` is the cheapest count that certainly meets the SLO, None where none does. `standings` are of all choices."""

    choices: Sequence[Choice]
    conditions: Sequence[Condition]
    standings: Sequence[Standing]
    winner: Tried | None
    most: int

    def cost(self, tried: Tried) -> float:
        """USD per hour."""
        return tried.replicas * self.choices[tried.choice].price

    def undecided(self) -> list[Tried]:
        """Cheaper counts of which the trials leave open whether they meet the SLO."""
        limit = math.inf if self.winner is None else self.cost(self.winner)
        every = [each for standing in self.standings for each in standing.tried.values()]
        return sorted((each for each in every if each.chance.certain is None and self.cost(each) < limit), key=self.cost)

    def nearest(self) -> Tried | None:
        """The count that came nearest: the highest chance, the cheaper of equals."""
        every = [each for standing in self.standings for each in standing.tried.values()]
        return max(every, key=lambda each: (each.chance.value, -max(each.used), -self.cost(each)), default=None)


Trials = Callable[[int, int, Iterable[int]], Iterable[tuple[float, ...]]]
"""(choice, replicas, trials) -> of each trial, how much of each condition's limit is used."""


def search(
    choices: Sequence[Choice],
    conditions: Sequence[Condition],
    trials: Trials,
    most: int,
    on_tried: Callable[[Tried], None] | None = None,
    standings: Sequence[Standing] | None = None,
) -> Plan:
    """The cheapest count of replicas, up to `most`, over all choices; `standings` may rule out counts that cannot do."""
    known = list(standings) if standings is not None else [Standing() for _ in choices]
    while True:
        best, count = -1, None
        for i, (choice, standing) in enumerate(zip(choices, known, strict=True)):
            # the least that the choice can still cost, and whether that is settled
            nearest = None if standing.why or standing.fails >= most else standing.fails + 1
            if nearest is not None and (best < 0 or nearest * choice.price < (known[best].fails + 1) * choices[best].price):
                best = i
        if best < 0:
            return Plan(choices, conditions, known, None, most)
        standing = known[best]
        count = standing.next_count(most)
        if count is None:
            assert standing.holds is not None
            return Plan(choices, conditions, known, standing.tried[standing.holds], most)
        tried = _try(best, count, len(conditions), trials)
        standing.tried[count] = tried
        if tried.chance.certain:
            standing.holds = count
        else:
            standing.fails = count
        if on_tried is not None:
            on_tried(tried)


def _try(choice: int, replicas: int, conditions: int, trials: Trials) -> Tried:
    rows: list[tuple[float, ...]] = []

    def met(begin: int, end: int) -> int:
        found = list(trials(choice, replicas, range(begin, end)))
        rows.extend(found)
        return sum(max(used) <= 1.0 for used in found)

    chance = chance_by(met)
    used = np.array(rows).reshape(-1, conditions)
    return Tried(choice, replicas, chance, tuple(used.mean(axis=0).tolist()), tuple((used > 1.0).mean(axis=0).tolist()))


def standings_of(choices: Sequence[Choice], conditions: Sequence[Condition]) -> list[Standing]:
    """Where every choice stands before any trial: out if its model does not fit, or if even an idle replica is too slow; else the counts
    that the load alone rules out.
    """
    return [_standing(choice, conditions) for choice in choices]


def _standing(choice: Choice, conditions: Sequence[Condition]) -> Standing:
    study = choice.study_of(1)
    try:
        pool = planned(study)[0]
        check_all_fit(study, study.workload.trace, [pool])
    except (SimctlError, UsageError) as error:
        return Standing(why=str(error))
    fastest_ms = 1e3 * _alone_s(pool, study) * float(np.exp(-_spread(pool)))
    for condition in conditions:
        if condition.figure.endswith("tpot_ms") and condition.limit < fastest_ms:
            return Standing(why=f"{condition.text}: a token takes at least {fastest_ms:.3g} ms, with nobody beside it")
    return Standing(fails=max(_least_replicas(pool, study) - 1, 0))


def _alone_s(pool: PlannedPool, study: Study) -> float:
    """A decode step of one sequence of the shortest prompt, at the median rates."""
    d, shortest = pool.spec.deployment, float(study.workload.trace.prompt_tokens.min())
    return float(step_time_s(d.work(decode_batch(d.model, 1.0, shortest, d.limits.attention, np)), pool.rates.point))


def _spread(pool: PlannedPool) -> float:
    """How much faster than the median the fastest of the draws may be, as a logarithm."""
    d = pool.spec.deployment
    work = d.work(decode_batch(d.model, 1.0, 1024.0, d.limits.attention, np))
    times = np.asarray(step_time_s(work, pool.rates.draws, np))
    return float(np.log(np.median(times) / times.min()))


def _least_replicas(pool: PlannedPool, study: Study) -> int:
    """A count that the load alone needs at least: its prompts in full iterations, or its decodes in full batches, whichever is more.

    An open load only: a closed loop waits for its answers. Cached prompts cost nothing, so with shared prefixes only decodes count.
    """
    trace, d, config = study.workload.trace, pool.spec.deployment, pool.config
    span = float(np.nanmax(trace.arrival_s)) if len(trace) > 1 else 0.0
    if not span or study.workload.max_concurrency is not None or np.isnan(trace.arrival_s).any() or d.limits.draft or config.options:
        return 1
    budget, point = float(config.max_num_batched_tokens), pool.rates.point
    shared = any(content is not None for content in trace.contents) and config.enable_prefix_caching
    full_s = float(step_time_s(d.work(mixed_batch(d.model, (), [(budget, budget, 1.0)])), point))
    prefill_s = 0.0 if shared else float(trace.prompt_tokens.sum()) / budget * full_s
    context = float(np.median(trace.prompt_tokens))
    batch = float(max(min(config.max_num_seqs, config.kv_capacity_tokens / max(context, 1.0)), 1.0))
    decode_s = float(step_time_s(d.work(decode_batch(d.model, batch, context, d.limits.attention, np)), point)) / batch
    work_s = max(prefill_s, float((trace.output_tokens - 1).sum()) * decode_s) * float(np.exp(-_spread(pool)))
    # a queue may outlast the arrivals by as long as they lasted, and the SLO still hold of most
    return max(1, math.ceil(work_s / (2.0 * span)))


class _Here:
    """Trials in this process: one planned pool at a time."""

    def __init__(self, choices: Sequence[Choice], conditions: Sequence[Condition]) -> None:
        self._choices, self._conditions = choices, conditions
        self._key: tuple[int, int] = (-1, 0)
        self._study: Study
        self._pools: list[PlannedPool]

    def one(self, choice: int, replicas: int, trial: int) -> tuple[float, ...]:
        """How much of each condition's limit a trial uses."""
        if self._key != (choice, replicas):
            self._key, self._study = (choice, replicas), self._choices[choice].study_of(replicas)
            self._pools = planned(self._study)
        study = self._study
        trace = study.workload.redraw(trial) if study.workload.redraw else study.workload.trace
        check_all_fit(study, trace, self._pools)
        summary = summarise(run_planned(study, self._pools, trace, trial), study.goodput)
        return tuple(condition.use(summary) for condition in self._conditions)


_here: _Here | None = None  # of a worker process


def _begin(choices: Sequence[Choice], conditions: Sequence[Condition]) -> None:
    global _here
    _here = _Here(choices, conditions)


def _one(asked: tuple[int, int, int]) -> tuple[float, ...]:
    assert _here is not None
    return _here.one(*asked)


@contextmanager
def trials_of(choices: Sequence[Choice], conditions: Sequence[Condition], workers: int) -> Iterator[Trials]:
    """What runs trials, in so many processes; in this one for a single worker."""
    if workers == 1:
        here = _Here(choices, conditions)
        yield lambda choice, replicas, trials: [here.one(choice, replicas, trial) for trial in trials]
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin, initargs=(choices, conditions)) as pool:
        yield lambda choice, replicas, trials: pool.map(_one, [(choice, replicas, trial) for trial in trials], chunksize=CHUNK)
