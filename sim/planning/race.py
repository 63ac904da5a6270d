"""Racing: the search of a capacity plan for the cheapest count of any choice that certainly meets the SLO.

All that might be cheapest run a few trials, those that are left more, and so on (successive halving by sim.results.chance.STAGES). Within
a stage the search takes the choice whose next count would be cheapest, and tries that count, until one leads: dearer choices are tried no
further than they must be. A count is out for good once its interval lies below 0.95. It takes for granted that more replicas do
not do worse. A stage leaves a ranked answer; the last one a certain answer, and what stayed undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sim.planning.choices import Choice
from sim.planning.cpu_budget import OutOfTime
from sim.planning.trials import Run, Trial
from sim.quantiles import t_95
from sim.results.chance import CERTAINTY, ENOUGH, STAGES, Chance, chance_of_figures
from sim.slo import Condition

GALLOP_BELOW = 0.5  # chance from which on counts are tried one by one
RANKED = (1, 2, *(stage for stage in STAGES if stage <= ENOUGH))  # stages; a single trial ranks, two that miss are enough
TWO_UPTO = 20  # trials
SECURED = 2, 4, 6, 8  # trials after which one looks whether a count, all of which hold, can be bought
FEWEST, ALMOST = 6, 0.9  # trials before it can, and the lower bound of a chance that needs nothing to spare
SAME = 4  # trials by which two choices of equal cost are seen to be the same
EQUAL_AFTER = 100  # trials in which two choices used equal shares, so that one takes the rest from the other


@dataclass(slots=True)
class Candidate:
    """A count of a choice and its trials, which `add` adds."""

    choice: int
    replicas: int
    trials: list[Trial] = field(default_factory=list, repr=False)
    chance: Chance = field(default_factory=lambda: Chance(0, 0))
    worst: float = 0.0  # sum over trials of how much is used of the limit that is used most

    def add(self, trials: Sequence[Trial]) -> None:
        """More trials."""
        self.trials.extend(trials)
        self.worst += sum(max(trial.used) for trial in trials)
        used = np.array([trial.used for trial in self.trials])
        error = np.array([trial.error or (0.0,) * len(trial.used) for trial in self.trials])
        self.chance = chance_of_figures(used, error, np.array([trial.grows for trial in self.trials]))

    @property
    def used(self) -> tuple[float, ...]:
        """Of each condition, how much of its limit is used in the mean."""
        return tuple(np.array([trial.used for trial in self.trials]).mean(axis=0).tolist())

    @property
    def missed(self) -> tuple[float, ...]:
        """Of each condition, how often it is missed."""
        return tuple((np.array([trial.used for trial in self.trials]) > 1.0).mean(axis=0).tolist())

    @property
    def binding(self) -> int:
        """The condition that is missed most often, or else that uses most of its limit."""
        used, missed = self.used, self.missed
        return max(range(len(used)), key=lambda i: (missed[i], used[i]))

    @property
    def margin(self) -> float:
        """Rest of the limit that is used most, in the mean over trials."""
        return 1.0 - self.worst / len(self.trials)

    @property
    def can_be_bought(self) -> bool:
        """Whether it is named where trials end early: by its chance, or because the next draw of the rates would have to lie farther from
        the mean of the trials than one in twenty do (Student's t), the trials' own errors left out of what scatters.
        """
        if self.chance.certain is not None or not self.trials or self.chance.low >= ALMOST:
            return bool(self.chance.certain or self.chance.low >= ALMOST)
        if len(self.trials) < FEWEST or self.chance.value < CERTAINTY or any(trial.grows for trial in self.trials):
            return False
        places = [max(range(len(trial.used)), key=lambda i: trial.used[i]) for trial in self.trials]
        used = np.maximum([trial.used[i] for trial, i in zip(self.trials, places, strict=True)], 1e-9)
        error = np.array([trial.error[i] if trial.error else 0.0 for trial, i in zip(self.trials, places, strict=True)])
        spare, scatter = -np.log(used), float(np.log(used).var(ddof=1))
        by_rates = max(scatter - float(((error / used) ** 2).mean()), 0.0)
        return bool(spare.mean() >= t_95(len(self.trials) - 1) * math.sqrt(by_rates + scatter / len(self.trials)))

    def leads(self, stage: int, enough: int) -> bool | None:
        """Whether it may meet the SLO as far as this stage can tell; None before it has got there. After `enough` only the certain may."""
        if self.chance.certain is not None or len(self.trials) >= enough:
            return bool(self.chance.certain)
        return self.chance.value >= CERTAINTY if len(self.trials) >= stage else None


@dataclass(slots=True)
class CandidateState:
    """State of a choice: up to `fails` units do not do; or `why` it is out, or the choice that it is `same_as`. `unloaded_s` is a decode
    step at batch 1.
    """

    fails: int = 0
    why: str = ""
    same_as: int | None = None
    candidates: dict[int, Candidate] = field(default_factory=dict)
    unloaded_s: float = 0.0

    @property
    def open(self) -> bool:
        """Whether it may be the answer."""
        return not self.why and self.same_as is None

    def know(self, choice: int, count: int, trials: Sequence[Trial]) -> None:
        """Trials of so many units that were run before."""
        candidate = self.candidates.setdefault(count, Candidate(choice, count))
        candidate.add(trials)
        if candidate.chance.certain is False:
            self.fails = max(self.fails, count)

    def bounds(self, stage: int, enough: int) -> tuple[int, int | None]:
        """The most units that do not do and the least that do, as far as the stage can tell."""
        low, high = self.fails, None
        for count in sorted(self.candidates):
            leads = None if count <= self.fails else self.candidates[count].leads(stage, enough)
            if leads:
                return low, count
            if leads is False:
                low = count
        return low, high

    def next_count(self, low: int, high: int | None, most: int) -> int | None:
        """Units to try next: halfway into what is open; else the most that have missed so far, which settles all below; else twice as many
        while queues grow without end, a quarter more while the chance is far off, or one more.
        """
        if high is not None:
            return None if high == low + 1 else (low + high) // 2
        tried = [count for count, each in sorted(self.candidates.items()) if count > low and each.trials]
        if tried:
            hold = [self.candidates[count].chance.value >= CERTAINTY for count in tried]
            return tried[max((hold.index(True) if any(hold) else len(tried)) - 1, 0)]
        last = self.candidates.get(low)
        far = last is not None and last.chance.value < GALLOP_BELOW
        grows = last is not None and last.trials and all(trial.grows for trial in last.trials)
        count = low + (low if grows else max(1, low // 4) if far else 1)
        return min(count, most)


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The answer: `winner` is the cheapest count that certainly meets the SLO, None where none does. `states` are of all choices.

    `best` is the winner or, where trials did not suffice, the cheapest count that looks as if it did; where they ended early, the count
    with the highest lower bound of its chance, if that is high enough to buy it. `ended` says what ended the race early, `lasts` how long
    the load lasts, in words.
    """

    choices: Sequence[Choice]
    conditions: Sequence[Condition]
    states: Sequence[CandidateState]
    best: Candidate | None
    ended: str = ""
    lasts: str = ""

    @property
    def finished(self) -> bool:
        """Whether the race came to its own end."""
        return not self.ended

    @property
    def winner(self) -> Candidate | None:
        """The cheapest count that certainly meets the SLO."""
        return self.best if self.best is not None and self.best.chance.certain else None

    def cost(self, candidate: Candidate) -> float:
        """USD per hour."""
        return self.choices[candidate.choice].cost(candidate.replicas)

    def candidates(self) -> list[Candidate]:
        """All counts that were tried, the cheapest first."""
        return sorted((each for state in self.states for each in state.candidates.values() if each.trials), key=self.cost)

    def undecided(self) -> list[Candidate]:
        """Cheaper counts of which the trials leave open whether they meet the SLO."""
        limit = math.inf if self.winner is None else self.cost(self.winner)
        tried = [each for each in self.candidates() if each.replicas >= self.at_least(each)]
        return [each for each in tried if each.chance.certain is None and self.cost(each) < limit]

    def fewest(self, candidate: Candidate) -> Candidate:
        """The fewest units of the same choice that the trials do not tell from enough: itself, or the lower end of the margin."""
        state, low = self.states[candidate.choice], candidate
        while (below := state.candidates.get(low.replicas - 1)) is not None and below.trials and below.chance.certain is not False:
            low = below
        return low

    def at_least(self, candidate: Candidate) -> int:
        """The fewest units of the same choice that are not known to be too few."""
        return self.states[candidate.choice].fails + 1

    def promising(self) -> Candidate | None:
        """The cheapest count that has met the SLO in all of its trials, of equals the one that uses least of it; else the nearest."""
        all_met = [each for each in self.candidates() if each.chance.met == each.chance.trials]
        return min(all_met, key=lambda each: (self.cost(each), max(each.used)), default=self.nearest())

    def nearest(self) -> Candidate | None:
        """The count that came nearest: the highest chance by its lower bound, which few trials keep low, and the cheaper of equals."""

        def near(each: Candidate) -> tuple[float, float, float, float]:
            return each.chance.low, each.chance.value, -max(each.used), -self.cost(each)

        return max(self.candidates(), key=near, default=None)


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """Progress of a race: trials done, choices that may still be the cheapest, and the cheapest count that looks as if it did."""

    stage: int
    done: int
    left: int
    best: Candidate | None
    stage_ends: bool = False


class Race:
    """A race of choices up to `most` GPUs. `states` may rule out counts that cannot do, and come out as what is known."""

    def __init__(
        self,
        choices: Sequence[Choice],
        run: Run,
        most: int,
        states: Sequence[CandidateState],
        stages: Sequence[int] = RANKED,
        on_step: Callable[[SearchProgress], None] | None = None,
    ) -> None:
        self.choices, self.states = choices, states
        self.done = 0
        self._stages = stages
        self._run, self._on_step = run, on_step
        self._most = [choice.most(most) for choice in choices]
        self._first: dict[tuple[tuple[float, ...], ...], Candidate] = {}  # of equal-cost candidates
        self._kinds: dict[tuple[int, float, tuple[Trial, ...]], Candidate] = {}  # first of those whose first trials went alike

    def cheapest(self, stage: int) -> Candidate | None:
        """Run the stage: the cheapest count that leads, of equals the likeliest; None where none does."""
        while True:
            ranked = self._ranked(stage)
            if not ranked:
                return None
            (cost, _, _, _), best, low, high = ranked[0]
            count, stage_of = self.states[best].next_count(low, high, self._most[best]), stage
            if count is None:
                equals = [i for rank, i, _, _ in ranked if rank[0] <= cost * (1 + 1e-9)]
                behind = None if stage == self._stages[0] else self._behind(equals, stage)  # a first answer waits for no equals
                if behind is None:
                    return self.states[best].candidates[low + 1]
                best, count, stage_of = behind
            self.advance(best, count, stage_of)
            if self._on_step:
                self._on_step(SearchProgress(stage, self.done, len(ranked), None))

    def _behind(self, equals: Sequence[int], stage: int) -> tuple[int, int, int] | None:
        """The next of the choices of equal cost to go on with the first one, and up to which stage: all run the first stages, half of them
        each next one, and two of them TWO_UPTO trials.
        """
        among = -(-len(equals) // 2 ** sum(each > SECURED[0] for each in self._stages[: self._stages.index(stage) + 1]))
        if stage <= TWO_UPTO:
            among = max(among, 2)
        for place, i in enumerate(equals):
            upto = stage if place < among else min(stage, STAGES[0])
            low, high = self.states[i].bounds(upto, self._stages[-1])
            if self.states[i].next_count(low, high, self._most[i]) == low + 1:
                return i, low + 1, upto
        return None

    def _ranked(self, stage: int) -> list[tuple[tuple[float, bool, float, float], int, int, int | None]]:
        """Choices that may still be the cheapest, by the least that they can cost; of equals those that stand first, then the likeliest."""
        found = []
        for i, state in enumerate(self.states):
            if not state.open:
                continue
            low, high = state.bounds(stage, self._stages[-1])
            if low < self._most[i]:
                candidate = state.candidates.get(low + 1)
                likely = (-candidate.chance.value, -candidate.margin) if candidate and candidate.trials else (0.0, 0.0)
                found.append(((self.choices[i].cost(low + 1), high != low + 1, *likely), i, low, high))
        return sorted(found, key=lambda each: each[0])

    def sized(self, choice: int, stage: int) -> Candidate | None:
        """The least count of one choice that leads after so many trials."""
        state = self.states[choice]
        while state.open:
            low, high = state.bounds(stage, self._stages[-1])
            if low >= self._most[choice]:
                return None
            if (count := state.next_count(low, high, self._most[choice])) is None:
                return state.candidates[low + 1]
            self.advance(choice, count, stage)
        return None

    def secure(self, near: Candidate) -> Candidate:
        """The count, or one of more units where it misses, that can be bought, its trials run; the last one tried where none can."""
        state, count, most = self.states[near.choice], near.replicas, self._most[near.choice]
        while True:
            candidate = state.candidates.setdefault(count, Candidate(near.choice, count))
            for look in SECURED:
                if not candidate.can_be_bought and len(candidate.trials) < look and candidate.chance.met == len(candidate.trials):
                    self._extend(candidate, look)
            if candidate.can_be_bought or count == most:
                return candidate
            count = min(count + max(1, count // 4), most)

    def bound(self, best: Candidate) -> None:
        """Run two trials of counts below, from the highest that has met the SLO in none, until one is out: how few may do."""
        state = self.states[best.choice]
        for count in sorted((n for n, each in state.candidates.items() if n < best.replicas and not each.chance.met), reverse=True):
            if count > state.fails:
                self.advance(best.choice, count, SECURED[0])

    def settle(self, best: Candidate) -> None:
        """Run all trials of the counts below, down to one that certainly does not do: the margin's lower end."""
        state, count = self.states[best.choice], best.replicas - 1
        while count > state.fails:
            self.advance(best.choice, count, self._stages[-1])
            count -= 1

    def advance(self, choice: int, count: int, stage: int) -> None:
        """Run the trials of a count up to a stage, or until they have decided."""
        state = self.states[choice]
        candidate = state.candidates.setdefault(count, Candidate(choice, count))
        for look in self._stages:
            if len(candidate.trials) < look <= stage and candidate.chance.certain is None:
                self._extend(candidate, look)
        if count == state.fails + 1:
            self._merge(candidate)
        if candidate.chance.certain is False:
            state.fails = max(state.fails, count)

    def _merge(self, candidate: Candidate) -> None:
        """Drop a choice whose first SAME trials hold and are those of another one of equal cost, where all lower counts of both are out: a
        cap that is never reached, and with more replicas even less so. Losses are rare, and one replica says nothing of a router.
        """
        choice, count = self.choices[candidate.choice], candidate.replicas
        if len(candidate.trials) < SAME or choice.lost(count):
            return
        first_trials = tuple(candidate.trials[:SAME])
        if not all(trial.met for trial in first_trials):  # what fails alike may do unlike with more replicas
            return
        alike = (count, choice.cost(count), first_trials)
        first = self._kinds.setdefault(alike, candidate)
        if first is not candidate and (count > 1 or self.choices[first.choice].routed == choice.routed):
            self.states[candidate.choice].same_as = first.choice
            self.states[candidate.choice].candidates.clear()

    def _extend(self, candidate: Candidate, stage: int) -> None:
        begin = len(candidate.trials)
        if begin >= EQUAL_AFTER and not self.choices[candidate.choice].lost(candidate.replicas):  # losses are rare: so many may show none
            limits_used = tuple(trial.used for trial in candidate.trials[:EQUAL_AFTER])
            if (first := self._first.setdefault(limits_used, candidate)) is not candidate and len(first.trials) >= stage:
                candidate.add(first.trials[begin:stage])
                return
        candidate.add(list(self._run(candidate.choice, candidate.replicas, range(begin, stage))))
        self.done += stage - begin


def search(
    choices: Sequence[Choice],
    conditions: Sequence[Condition],
    run: Run,
    most: int,
    on_step: Callable[[SearchProgress], None] | None = None,
    states: Sequence[CandidateState] | None = None,
    stages: Sequence[int] = RANKED,
    release: Callable[[], None] | None = None,
) -> tuple[RaceResult, Race]:
    """The cheapest count over all choices, of up to `most` GPUs. KeyboardInterrupt or OutOfTime ends it early, with what is known then. The
    first OutOfTime is the last but for what `release` gives back: enough to secure a count that can be bought, and to go on.
    """
    known = list(states) if states is not None else [CandidateState() for _ in choices]
    best: Candidate | None = None

    def step(found: SearchProgress) -> None:
        if on_step:
            on_step(SearchProgress(found.stage, found.done, found.left, best, found.stage_ends))

    race = Race(choices, run, most, known, stages, step)

    def run_all() -> None:
        nonlocal best
        for stage in stages:
            before = race.done
            best = race.cheapest(stage)
            if race.done > before:
                step(SearchProgress(stage, race.done, 0, best, True))
        if best is not None:
            race.settle(best)

    try:
        try:
            run_all()
        except OutOfTime:
            if release is None:
                raise
            release()
            plan = so_far(choices, conditions, known, "")
            if plan.best is None and (near := plan.promising()) is not None:
                race.bound(race.secure(near))
            run_all()
    except (KeyboardInterrupt, OutOfTime) as reason:
        return so_far(choices, conditions, known, "time is up" if isinstance(reason, OutOfTime) else "stopped"), race
    return RaceResult(choices, conditions, known, best), race


def so_far(choices: Sequence[Choice], conditions: Sequence[Condition], states: Sequence[CandidateState], ended: str) -> RaceResult:
    """What trials say that were not run to the end: the cheapest count that is certain, else the one with the highest lower bound."""
    plan = RaceResult(choices, conditions, states, None, ended)
    tried = plan.candidates()  # the cheapest first
    certain = [each for each in tried if each.chance.certain]
    likely = sorted((each for each in tried if each.can_be_bought), key=lambda each: -each.chance.low)
    return replace(plan, best=next(iter(certain or likely), None))
