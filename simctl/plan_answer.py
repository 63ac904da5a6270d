"""The whole answer of `simctl plan`: the race, what more money buys, the highest rate, the binding term, and what to measure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim.errors import UsageError
from simctl.plan_choices import offered
from simctl.text.plan_progress import Watch

if TYPE_CHECKING:
    from sim.plan.day import Hour
    from sim.plan.front import Point
    from sim.plan.race import Plan, Race
    from sim.plan.rates import Sustained
    from sim.plan.trials import Runner
    from sim.plan.value import Measurement


@dataclass(slots=True)
class Answer:
    """A plan and what is known around its winner; `finished` is False where somebody stopped it."""

    plan: Plan
    finished: bool = True
    quick: bool = False
    front: list[Point] = field(default_factory=list)
    sustained: Sustained | None = None
    terms: dict[str, float] = field(default_factory=dict)
    measurement: Measurement | None = None
    day: list[Hour] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # combinations that there cannot be, and why


def answer_of(options: Mapping[str, Any]) -> Answer:
    """Race and then look around. Ctrl-C ends either with what is known."""
    from sim.plan.bounds import standings_of
    from sim.plan.race import search
    from sim.plan.trials import runner
    from sim.results.metrics import parse_goodput
    from sim.slo import parse_slo

    if options["gpu"] is None:
        raise UsageError("plan on what? give --gpu NAME[,NAME...]")
    options, hours = _busiest_hour(options)
    conditions = parse_slo(options["slo"], parse_goodput(options["goodput"]))
    choices, skipped = offered(options)
    if options["emit"]:
        from simctl.plan_emit import check_emits

        check_emits(choices)
    quick, watch = options["quick"] or options["emit"] is not None, Watch(choices, options["progress"])
    with runner(choices, conditions, options["workers"] or os.cpu_count() or 1) as run:
        standings = standings_of(choices, conditions, options["most_gpus"])
        plan, race = search(choices, conditions, run.trials, options["most_gpus"], watch, standings)
        answer = Answer(plan, plan.finished, quick, skipped=skipped)
        try:
            if plan.winner and plan.finished and not quick:
                _look_around(answer, race, run, watch)
            if plan.winner and hours and not options["emit"]:
                watch.phase("what each hour of the day needs")
                answer.day = _day(plan, run, hours)
        except KeyboardInterrupt:
            answer.finished = False
    watch.end()
    return answer


def _look_around(answer: Answer, race: Race, run: Runner, watch: Watch) -> None:
    from sim.plan.front import front_of
    from sim.plan.rates import TRIALS, asked_rate, sustained
    from sim.plan.trials import cost_shares_of
    from sim.plan.value import best_measurement

    plan, win = answer.plan, answer.plan.winner
    assert win is not None
    study = plan.choices[win.choice].study_of(win.replicas)
    answer.terms = cost_shares_of(study)
    watch.phase("what a measurement is worth")
    answer.measurement = best_measurement(plan, race.advance)
    watch.phase("what more money buys")
    answer.front = front_of(plan, race)
    if (asked := asked_rate(study.workload)) is not None:
        watch.phase("the highest rate that the cheapest sustains")
        answer.sustained = sustained(run.factors(win.choice, win.replicas, range(TRIALS)), asked)


def _busiest_hour(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[float]]:
    """The options at the rate of the busiest hour of --day, and the rates of all hours; none without it."""
    if options["day"] is None:
        return options, []
    from sim.plan.day import hourly
    from sim.workload.rate_curve import load_curve

    for name in ("rate_curve", "max_concurrency", "trace", "agent_sessions"):
        if options[name] is not None:
            raise UsageError(f"--day draws requests at the rates of its hours: leave out --{name.replace('_', '-')}")
    curve = load_curve(options["day"])
    rates = hourly(curve if options["request_rate"] is None else curve.scaled_to(options["request_rate"]))
    return {**options, "request_rate": max(rates)}, rates


def _day(plan: Plan, run: Runner, rates: list[float]) -> list[Hour]:
    from sim.plan.day import hours_of

    win = plan.winner
    assert win is not None
    return hours_of(rates, plan.choices[win.choice], win.replicas, max(rates), lambda count, trials: run.factors(win.choice, count, trials))
