"""The whole answer of `simctl plan`: the race, what more money buys, the highest rate, the binding term, and what to measure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim.errors import UsageError
from simctl.plan_choices import choices_of
from simctl.plan_progress import Watch

if TYPE_CHECKING:
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


def answer_of(options: Mapping[str, Any]) -> Answer:
    """Race and then look around. Ctrl-C ends either with what is known."""
    from sim.plan.bounds import standings_of
    from sim.plan.race import search
    from sim.plan.trials import runner
    from sim.results.metrics import parse_goodput
    from sim.slo import parse_slo

    if options["gpu"] is None:
        raise UsageError("plan on what? give --gpu NAME[,NAME...]")
    conditions = parse_slo(options["slo"], parse_goodput(options["goodput"]))
    choices = choices_of(options)
    if options["emit"]:
        from simctl.plan_emit import check_emits

        check_emits(choices)
    quick, watch = options["quick"] or options["emit"] is not None, Watch(choices, options["progress"])
    with runner(choices, conditions, options["workers"] or os.cpu_count() or 1) as run:
        standings = standings_of(choices, conditions, options["most_gpus"])
        plan, race = search(choices, conditions, run.trials, options["most_gpus"], watch, standings)
        answer = Answer(plan, plan.finished, quick)
        try:
            if plan.finished and not quick:
                _look_around(answer, race, run, watch)
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
    if win is None:
        return
    study = plan.choices[win.choice].study_of(win.replicas)
    answer.terms = cost_shares_of(study)
    watch.phase("what a measurement is worth")
    answer.measurement = best_measurement(plan, race.advance)
    watch.phase("what more money buys")
    answer.front = front_of(plan, race)
    if (asked := asked_rate(study.workload)) is not None:
        watch.phase("the highest rate that the cheapest sustains")
        answer.sustained = sustained(run.factors(win.choice, win.replicas, range(TRIALS)), asked)
