"""The question of a capacity plan: which deployment meets an SLO at the least cost, and with what chance."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from sim.errors import UsageError
from sim.planning.answer import PlanAnswer
from sim.planning.bounds import states_of
from sim.planning.choices import KINDS, ONE, Choice, Part, check_kinds, on_spot, pooled
from sim.planning.cpu_budget import OutOfTime
from sim.planning.day import hours_of
from sim.planning.emit import check_emits
from sim.planning.front import front_of, point_of
from sim.planning.grid import MOST_CHOICES
from sim.planning.growth import Year, times_of, year_of
from sim.planning.highest_rate import LOWEST, TRIALS, offered_rate, sustained
from sim.planning.plan_file import Trials, primed
from sim.planning.race import Race, SearchProgress, search
from sim.planning.spot import Spot
from sim.planning.trials import Runner, once, runner
from sim.planning.value import best_measurement
from sim.planning.words import MORE, for_how_long, left_by_a_node, reasons, without_a_node
from sim.rates.source import RateSource
from sim.shown import Figures, Shown
from sim.slo import parse_slo
from sim.specs.gpus import get_gpu
from sim.study.deployment import Deployment
from sim.study.lasting import MOST, can_last, is_whole
from sim.study.simulate_question import Simulate
from sim.sweeps.executor import Opened
from sim.workload.workload import Workload

PAIRED = 20  # trials that are run again at more load
LAST = 0.5  # of the budget: to secure a count where the race is far from its end
RESERVES = ("none", "replica", "node")


class Watch(Protocol):
    """Receiver of a plan's progress."""

    def __call__(self, step: SearchProgress) -> None:
        """A step of the race."""

    def phase(self, what: str) -> None:
        """Report the phase after the race."""


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Shown):
    """The cheapest of `deployments`, by name or in a list, with as many replicas as it needs, that meets `slo` with a chance of 0.95.

    `slo` are conditions as in sim.slo; `goodput` maps ttft, tpot, e2el to milliseconds; `prices` are USD per GPU-hour by GPU (else the
    catalogue's). `pools` are kinds of sim.planning.choices; `reserve` also buys what the loss of one replica or node takes. `hours` are
    requests per second of each hour of a day whose busiest hour is the workload. `quick` leaves out all but the cheapest; `emit` is the
    kind of launch commands that the winner must have (sim.planning.emit). `workers` None: a process per core; or what opens a pool of
    others (sim.sweeps.executor). The load lasts `for_s`
    seconds, None: for good (sim.study.lasting). The answer is what is known after
    `within_s` CPU seconds, None: when all is.
    """

    deployments: Mapping[str, Deployment] | Sequence[Deployment]
    workload: Workload
    slo: str | Sequence[str]
    goodput: Mapping[str, float] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    rates: RateSource = field(default_factory=RateSource)
    pools: Sequence[str] = (ONE,)
    reserve: str = "none"
    most_gpus: int = 64
    most_kw: float | None = None  # sum of the power limits of its GPUs
    hours: Sequence[float] = ()
    quick: bool = False
    emit: str | None = None
    workers: int | Opened | None = None
    for_s: float | None = None
    within_s: float | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)  # combinations that cannot be deployments, and why
    spot: Mapping[str, Spot] = field(default_factory=dict)  # by GPU: offers of replicas that are taken away now and then
    stock: Mapping[str, int] = field(default_factory=dict)  # GPUs that there are, by name; empty: as many as one likes
    growth: float | None = None  # times the load in a year from now
    reserved: Mapping[str, float] = field(default_factory=dict)  # by GPU: USD per GPU-hour of a year's term
    known: Trials = field(default_factory=dict)  # trials of an earlier search of the same question

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        names = [*_named(self.deployments)]
        return " ".join(self.slo), [("load", self.workload.shown()[0]), ("choices", str(len(names))), ("of", ", ".join(names))]

    def __post_init__(self) -> None:
        if isinstance(self.slo, str):
            object.__setattr__(self, "slo", (self.slo,))
        if self.reserve not in RESERVES:
            raise UsageError(f"no reserve {self.reserve!r}; there are {', '.join(RESERVES)}")
        check_kinds(self.pools)
        if self.growth is not None:
            times_of(self.growth)
            if offered_rate(self.workload) is None:
                raise UsageError("--growth is of requests that arrive at a rate: give --request-rate")
        redraw = self.workload.redraw
        if self.for_s is not None and (redraw is None or not math.isfinite(redraw.rate_per_s)):
            raise UsageError("--for is of requests drawn at a constant rate: this load lasts as long as it does")
        if self.spot and can_last(self.workload) and not is_whole(self.workload, self.for_s):
            raise UsageError(f"losses_per_hour of spot prices: say for how long with --for, at most {MOST:,} requests")

    def choices(self) -> tuple[list[Choice], dict[str, str]]:
        """All choices, and by name why other deployments are none. UsageError where there is none, too many, or a GPU has no price."""
        prices = {get_gpu(name).name: price for name, price in self.prices.items()}
        offers = {get_gpu(name).name: spot for name, spot in self.spot.items()}
        found: list[Choice] = []
        skipped, known = dict(self.skipped), dict[Any, Any]()
        for name, deployment in _named(self.deployments).items():
            try:
                study = Simulate(deployment, self.workload, self.rates, self.goodput).study(known)
            except UsageError as error:
                skipped[name] = str(error)
                continue
            d = study.deployment
            price = prices.get(d.gpu.name, d.gpu.price_per_hour)
            if price is None:
                raise UsageError(f"no list price of {d.gpu.name} is known: give --price {d.gpu.name}=USD per GPU-hour")
            if self.most_kw is not None and d.gpu.power_w is None:
                raise UsageError(f"--most-kw: the catalogue does not say how much power one {d.gpu.name} may draw")
            lost = {"none": 0, "replica": 1, "node": max(d.links.replicas_per_node(d.gpus), 1)}[self.reserve]
            limit_w = (d.gpu.power_w or 0.0) * d.gpus
            found.append(Choice(name, study, (Part(1, price * d.gpus, d.gpus, lost, d.links.gpus_per_node, limit_w, gpu=d.gpu.name),)))
        if not found:
            raise UsageError(next(iter(skipped.values()), "no deployment to choose"))
        singles = list(found)
        ones = [*singles, *(each for one in singles if (spot := offers.get(one.study.deployment.gpu.name)) for each in on_spot(one, spot))]
        all_kinds = [ones if kind == ONE else pooled(singles, kind) for kind in sorted(set(self.pools), key=_order)]
        if (count := sum(map(len, all_kinds))) > MOST_CHOICES:
            raise UsageError(f"{count} deployments to choose among, more than {MOST_CHOICES}: give fewer values, or one kind of --pools")
        limit = math.inf if self.most_kw is None else self.most_kw
        stock = {get_gpu(name).name: count for name, count in self.stock.items()}
        choices = [replace(choice, most_kw=limit, stock=stock) for kind in all_kinds for choice in kind]
        if not choices:
            raise UsageError(f"--pools {','.join(self.pools)}: no two of these deployments make such pools")
        return choices, skipped

    def answer(self, watch: Callable[[Sequence[Choice]], Watch] | None = None) -> PlanAnswer:
        """The race, and what is around its winner. Ctrl-C, or the time that is up, ends either with what is known; `watch` of the choices
        receives its progress.
        """
        conditions = parse_slo(self.slo, self.goodput)
        choices, skipped = self.choices()
        if self.emit:
            check_emits(choices)
        watching = watch(choices) if watch else None
        quick = self.quick or self.emit is not None
        lasts = for_how_long(self.workload, self.for_s)
        with runner(choices, conditions, self.workers or os.cpu_count() or 1, self.for_s, self.within_s) as run:
            states = states_of(choices, conditions, self.most_gpus, self.for_s)
            primed(states, choices, self.known, self.most_gpus)
            run.know({(i, n): each.trials[0].requests for i, state in enumerate(states) for n, each in state.candidates.items()})
            run.hold_back(LAST)
            release = partial(run.hold_back, 0.0)
            result, race = search(choices, conditions, run.trials, self.most_gpus, watching, states, release=release)
            release()
            answer = PlanAnswer(replace(result, lasts=lasts), result.ended, quick, skipped=skipped)
            try:
                if result.winner and result.finished and not quick:
                    _look_around(answer, race, run, watching)
                if result.winner and self.hours and not self.emit:
                    _say(watching, "what each hour of the day needs")
                    answer.day = _day(answer, run, self.hours)
                if result.winner and self.growth is not None and not self.emit:
                    _say(watching, "what a year of growth needs")
                    answer.year = self._year(answer, run)
            except KeyboardInterrupt:
                answer.ended = "stopped"
            except OutOfTime:
                answer.ended = "time is up"
        return answer

    def _year(self, answer: PlanAnswer, run: Runner) -> Year:
        win, offered = answer.plan.winner, offered_rate(self.workload)
        assert win is not None
        assert offered is not None
        assert self.growth is not None
        reserved = {get_gpu(name).name: price for name, price in self.reserved.items()}

        def factors(count: int, trials: range) -> Sequence[float]:
            return run.factors(win.choice, count, trials, 1)

        return year_of(
            self.growth, self.hours or [offered], answer.plan.choices[win.choice], win.replicas, self.most_gpus, factors, reserved
        )


def plan(
    deployments: Mapping[str, Deployment] | Sequence[Deployment],
    workload: Workload,
    *,
    slo: str | Sequence[str],
    prices: Mapping[str, float] | None = None,
    **more: Any,
) -> PlanAnswer:
    """The cheapest deployment that meets `slo` (`"ttft:p99<2s tpot:p95<50ms"`); `more` are further fields of Plan."""
    return Plan(deployments, workload, (slo,) if isinstance(slo, str) else slo, prices=prices or {}, **more).answer()


def _order(kind: str) -> tuple[int, str]:
    return KINDS.index(kind.partition(":")[0]), kind


def _named(given: Mapping[str, Deployment] | Sequence[Deployment]) -> dict[str, Deployment]:
    if isinstance(given, Mapping):
        return dict(given)
    found: dict[str, Deployment] = {}
    for d in given:
        name = f"{d.placed} {d.model.name} {d.precision.weights}"
        found[name if name not in found else f"{name}, {len(found) + 1}"] = d
    return found


def _say(watch: Watch | None, what: str) -> None:
    if watch is not None:
        watch.phase(what)


def _look_around(answer: PlanAnswer, race: Race, run: Runner, watch: Watch | None) -> None:
    result, win = answer.plan, answer.plan.winner
    assert win is not None
    study = result.choices[win.choice].study_of(win.replicas)
    answer.terms, answer.power, tokens = once(result.choices[win.choice], win.replicas)
    answer.tokens = tokens.at(point_of(result, win).usd_per_mtok) if tokens else None
    if offered_rate(study.workload) is not None:
        _say(watch, "what more load does")
        answer.reasons = reasons(answer.plan, win.trials[:PAIRED], run.trials(win.choice, win.replicas, range(PAIRED), MORE))
    if (left := left_by_a_node(result.choices[win.choice], win.replicas)) is not None:
        _say(watch, "what the loss of a node does")
        answer.reasons.append(without_a_node(win.replicas, left, run.trials(win.choice, left, range(PAIRED)) if left else ()))
    _say(watch, "what a measurement is worth")
    answer.measurement = best_measurement(result, race.advance)
    _say(watch, "what more money buys")
    answer.front = front_of(result, race)
    if (offered := offered_rate(study.workload)) is not None:
        _say(watch, "the highest rate that the cheapest sustains")
        # the race knows by more trials that what was asked for is sustained
        answer.sustained = sustained(run.factors(win.choice, win.replicas, range(TRIALS), LOWEST), offered).at_least(offered)


def _day(answer: PlanAnswer, run: Runner, rates: Sequence[float]) -> list[Any]:
    win = answer.plan.winner
    assert win is not None
    choice = answer.plan.choices[win.choice]
    return hours_of(rates, choice, win.replicas, max(rates), lambda count, trials: run.factors(win.choice, count, trials, 1))
