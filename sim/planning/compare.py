"""Cards side by side: of every GPU its own cheapest deployment that meets the SLO, with the count that a search finds for it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from sim.closed_form.serving_at_context import Times, prompt_tokens, speeds
from sim.errors import UsageError
from sim.planning.bounds import states_of
from sim.planning.choices import ONE, Choice
from sim.planning.cpu_budget import OutOfTime
from sim.planning.front import Point, point_of
from sim.planning.question import Plan, Watch
from sim.planning.race import RANKED, Candidate, CandidateState, Race, RaceResult, SearchProgress
from sim.planning.trials import Runner, Trial, once, runner
from sim.planning.words import for_how_long
from sim.results.chance import CERTAINTY
from sim.results.power import Power
from sim.results.token_cost import TokenCost
from sim.shown import Figures, Shown
from sim.slo import Condition, parse_slo

COARSE = 20  # trials of a count that is far from the answer


@dataclass(frozen=True, slots=True, repr=False)
class Card(Shown):
    """One GPU: the race of its deployments, and figures of the cheapest that meets the SLO or looks as if it did; `why` there is none.

    `curve` is (tok/s of a user, output tok/s per GPU) by users at once, of one replica under load
    (sim.closed_form.serving_at_context). `power` is what the GPUs draw in one run at the medians.
    """

    gpu: str
    usd_per_gpu_hour: float
    result: RaceResult
    point: Point | None = None
    why: str = ""
    tokens: TokenCost | None = None
    power: Power | None = None
    curve: Sequence[tuple[float, float]] = ()

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        if self.best is None or self.point is None:
            return self.gpu, [("none", self.why)]
        choice = self.result.choices[self.best.choice]
        return f"{self.best.replicas} of {choice.name}", [("USD/hour", f"{self.point.usd_per_hour:.2f}"), ("chance", str(self.best.chance))]

    @property
    def best(self) -> Candidate | None:
        """The count that is bought."""
        return self.result.best

    @property
    def decided(self) -> bool:
        """Whether trials tell that it meets the SLO with a chance of 0.95, or that no count of this card does."""
        return self.result.finished and (self.best is None or self.result.winner is not None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        plain: dict[str, Any] = {
            "gpu": self.gpu,
            "usd_per_gpu_hour": self.usd_per_gpu_hour,
            "decided": self.decided,
            "why": self.why or None,
        }
        if self.best is None or self.point is None:
            return plain
        choice, count = self.result.choices[self.best.choice], self.best.replicas
        return plain | {
            "choice": choice.name,
            "replicas": count,
            "replicas_at_least": min(self.result.at_least(self.best), count),
            "gpus": choice.gpus_of(count),
            "usd_per_hour": self.result.cost(self.best),
            "usd_per_mtok": self.tokens.to_dict() if self.tokens else None,
            "usd_per_mtok_output_alone": self.point.usd_per_mtok,
            "user_tokens_per_s": self.point.user_tokens_per_s,
            "gpu_tokens_per_s": self.point.gpu_tokens_per_s,
            "chance": self.best.chance.value,
            "chance_low": self.best.chance.low,
            "chance_high": self.best.chance.high,
            "trials": self.best.chance.trials,
            "certain": self.best.chance.certain,
            "power_limit_kw": choice.kw_of(count) or None,
            "power": asdict(self.power) if self.power else None,
            "curve": [list(each) for each in self.curve],
        }


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """Cards in the order asked, and what is not a deployment."""

    model: str
    conditions: Sequence[Condition]
    cards: Sequence[Card]
    lasts: str = ""
    ended: str = ""
    workload: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        cards = [(card.gpu, f"{card.point.usd_per_hour:.2f} USD/hour" if card.point else card.why) for card in self.cards]
        return f"{self.model}: {' '.join(condition.text for condition in self.conditions)}", cards

    @property
    def ranked(self) -> list[Card]:
        """Cards on which a count meets the SLO or looks as if it did, the cheapest first."""
        return sorted((card for card in self.cards if card.point), key=lambda card: card.point.usd_per_hour if card.point else 0.0)

    @property
    def cheapest(self) -> Card | None:
        """The card whose deployment costs least; None where that hangs on what is undecided."""
        ranked = self.ranked
        return ranked[0] if ranked and ranked[0].result.winner and self._settled(ranked[0]) else None

    def _settled(self, first: Card) -> bool:
        """Whether no undecided count of another card is cheaper."""
        assert first.point is not None
        most = first.point.usd_per_hour
        return all(each is first or each.decided or _least_usd(each.result) >= most for each in self.cards)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "model": self.model,
            "slo": [condition.text for condition in self.conditions],
            "lasts": self.lasts or None,
            "finished": not self.ended,
            "cheapest": self.cheapest.gpu if self.cheapest else None,
            "workload": self.workload,
            "cards": [card.to_dict() for card in self.cards],
            "skipped": self.skipped,
        }


def compared(question: Plan, watch: Callable[[Sequence[Choice]], Watch] | None = None) -> Comparison:
    """Every card's own cheapest deployment, each searched with an equal share of the CPU seconds that are left. UsageError for a single
    card, and for pools, which may be of two.
    """
    conditions = parse_slo(question.slo, question.goodput)
    choices, skipped = question.choices()
    cards: dict[str, list[Choice]] = {}
    for choice in choices:
        cards.setdefault(choice.study.deployment.gpu.name, []).append(choice)
    if len(cards) < 2 or set(question.pools) != {ONE}:
        raise UsageError("--compare: of two GPUs or more, each with one pool")
    left_s, ended, found = question.within_s, "", []
    for place, (gpu, own) in enumerate(cards.items()):
        share = None if left_s is None else max(left_s, 0.0) / (len(cards) - place)
        with runner(own, conditions, question.workers or os.cpu_count() or 1, question.for_s, share) as run:
            card = _card(gpu, own, conditions, run, question, watch)
            left_s = None if left_s is None else left_s - run.spent_s
        found.append(card)
        ended = card.result.ended or ended
        if card.result.ended == "stopped":
            break
    return Comparison(
        choices[0].study.deployment.model.name,
        conditions,
        found,
        for_how_long(question.workload, question.for_s),
        ended,
        dict(question.workload.origin),
        skipped,
    )


def _card(
    gpu: str,
    choices: Sequence[Choice],
    conditions: Sequence[Condition],
    run: Runner,
    question: Plan,
    watch: Callable[[Sequence[Choice]], Watch] | None,
) -> Card:
    states = states_of(choices, conditions, question.most_gpus, question.for_s)
    watching = watch(choices) if watch else None
    done = 0

    def trials(choice: int, count: int, which: Iterable[int]) -> list[Trial]:
        nonlocal done
        found = run.trials(choice, count, which)
        done += len(found)
        if watching:
            watching(SearchProgress(0, done, 0, None))
        return found

    race = Race(choices, trials, question.most_gpus, states)
    price, best, ended = choices[0].parts[0].price / choices[0].parts[0].gpus, None, ""
    try:
        for i in sorted(range(len(choices)), key=lambda i: choices[i].cost(states[i].fails + 1)):
            found = None if states[i].why else least_certain(race, i, choices[i].most(question.most_gpus), _usd(choices, best))
            best = found or best
    except (KeyboardInterrupt, OutOfTime) as reason:
        ended = "time is up" if isinstance(reason, OutOfTime) else "stopped"
        best = best or _likely(states)
    if best is not None and not ended:
        with suppress(OutOfTime):  # the count is known without
            most_that_fail(race, best)
    result = RaceResult(choices, conditions, states, best, ended, for_how_long(question.workload, question.for_s))
    if best is None:
        return Card(gpu, price, result, why=_why(result))
    point, choice = point_of(result, best), choices[best.choice]
    _, power, tokens = once(choice, best.replicas)
    return Card(gpu, price, result, point, "", tokens.at(point.usd_per_mtok) if tokens else None, power, curve_of(choice))


def least_certain(race: Race, choice: int, most: int, below_usd: float = math.inf) -> Candidate | None:
    """The fewest units of a choice that meet the SLO for certain, of at most `most` and for less than `below_usd`; None where there are
    none.

    More units are taken to do no worse. COARSE trials a count find by halving where the chance passes 0.95; from there on counts get as
    many trials as it takes to be certain, in steps that double, and again by halving. `fails` of the state is the most that certainly do
    not.
    """
    state, costs = race.states[choice], race.choices[choice].cost
    while most and costs(most) >= below_usd:
        most -= 1
    if most <= state.fails or not _leads(race, choice, most):
        return None
    low, high = state.fails, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _leads(race, choice, middle) else (middle, high)
    low, count, step = state.fails, high, 1
    while not _certain(race, choice, count):
        if count == most:
            return None
        low, count, step = count, min(most, count + step), 2 * step
    high = count
    while high - low > 1:
        middle = (low + high) // 2 if low > state.fails else high - 1  # few trials are not far off
        low, high = (low, middle) if _certain(race, choice, middle) else (middle, high)
    return state.candidates[high]


def most_that_fail(race: Race, best: Candidate) -> int:
    """The most units below a count that certainly do not do, by halving: what lies between, trials do not tell from enough."""
    low, high = race.states[best.choice].fails, best.replicas
    while high - low > 1:
        middle = (low + high) // 2
        race.advance(best.choice, middle, RANKED[-1])
        low, high = (middle, high) if race.states[best.choice].candidates[middle].chance.certain is False else (low, middle)
    return low


def _leads(race: Race, choice: int, count: int) -> bool:
    """Whether a count looks as if it met the SLO by COARSE trials."""
    race.advance(choice, count, COARSE)
    found = race.states[choice].candidates[count].chance
    return found.value >= CERTAINTY if found.certain is None else found.certain


def _certain(race: Race, choice: int, count: int) -> bool:
    race.advance(choice, count, RANKED[-1])
    return bool(race.states[choice].candidates[count].chance.certain)


def _likely(states: Sequence[CandidateState]) -> Candidate | None:
    """What to name where time is up: of the counts that can be bought, the one with the highest lower bound of its chance."""
    tried = [each for state in states for each in state.candidates.values() if each.can_be_bought]
    return max(tried, key=lambda each: (bool(each.chance.certain), each.chance.low), default=None)


def _usd(choices: Sequence[Choice], best: Candidate | None) -> float:
    return math.inf if best is None else choices[best.choice].cost(best.replicas)


def _why(result: RaceResult) -> str:
    """Why no count of a card does, in words."""
    if result.ended:
        return result.ended
    if (near := result.nearest()) is None:
        return next((state.why for state in result.states if state.why), "no count does")
    missed = 100 * near.missed[near.binding]
    of = result.choices[near.choice]
    return f"{near.replicas} of {of.name} miss {result.conditions[near.binding].text} in {missed:.0f} % of {near.chance.trials} trials"


def _least_usd(result: RaceResult) -> float:
    """The least that a card can still cost."""
    open_ = [(choice, state) for choice, state in zip(result.choices, result.states, strict=True) if state.open]
    return min((choice.cost(state.fails + 1) for choice, state in open_), default=float("inf"))


def curve_of(choice: Choice) -> list[tuple[float, float]]:
    """The curve of one replica, from one user to as many as its KV and batch cap hold of the workload's mean request."""
    from sim.closed_form.fixes import users_that_fit

    d, trace = choice.study.deployment, choice.study.workload.trace
    prompt, output = (max(1, round(float(each.mean()))) for each in (trace.prompt_tokens, trace.output_tokens))
    fit = max(1, users_that_fit(d, prompt + output))
    ladder = sorted({min(2**i, fit) for i in range(fit.bit_length() + 1)})
    rates, host = choice.study.sources[0]
    return speeds(Times.of(d, prompt_tokens(prompt + output, output), output, rates, host), ladder)
