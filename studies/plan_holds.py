"""Planners' questions on fresh seeds at ten times the length: the count to buy holds, and the one below those that may do fails.

    python -m studies.plan_holds [--seeds 20] [NUMBER ...]

Each of `studies.plan_questions` is answered first. Its counts then serve loads and rates drawn anew, ten times as long as its trials; the
one below on a quarter of the loads, unless it meets one of them.
"""

from __future__ import annotations

import argparse
import shlex
from typing import NamedTuple

from sim.planning.question import Plan
from sim.planning.trials import Here
from simctl.commands.plan_command import command
from simctl.from_options.questions import plan_of
from studies.plan_questions import QUESTIONS

FRESH = 100_000  # trials from this one on are none of a plan's
TIMES = 10  # as long


class Held(NamedTuple):
    """The count that a plan buys, the fewest that may do, and how many fresh loads the first and the one below the second met: of `seeds`
    and of `tried`.
    """

    name: str
    bought: int
    fewest: int
    met: int
    below: int | None
    seeds: int
    tried: int


def question_of(options: str) -> Plan:
    """The plan that options of `simctl plan` ask for."""
    with command.make_context("plan", [*shlex.split(options), "--quick", "--no-progress"]) as context:
        return plan_of(context.params)


def held(question: Plan, seeds: int) -> Held | None:
    """None where the plan names nothing."""
    answer = question.answer()
    plan, best = answer.plan, answer.plan.best
    if best is None:
        return None
    fewest = plan.fewest(best).replicas if plan.winner else plan.at_least(best)

    def met(count: int, loads: int) -> int:
        here = Here(plan.choices, plan.conditions, question.for_s)
        here.requests[best.choice, count] = TIMES * here.one(best.choice, count, 0).requests
        return sum(here.one(best.choice, count, FRESH + i).met for i in range(loads))

    below, tried = None, -(-seeds // 4)
    if fewest > 1 and (below := met(fewest - 1, tried)):
        below, tried = met(fewest - 1, seeds), seeds
    return Held(plan.choices[best.choice].name, best.replicas, fewest, met(best.replicas, seeds), below, seeds, tried)


def main() -> None:
    """A line a question of those named by their numbers, or of all: 2 and 3 take ten CPU minutes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, default=range(1, len(QUESTIONS) + 1), metavar="NUMBER")
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    for number in given.numbers:
        question = QUESTIONS[number - 1]
        found = held(question_of(question.options), given.seeds)
        if found is None:
            print(f"{number}. {question.words}: no count is named", flush=True)
            continue
        below = "" if found.below is None else f"; {found.fewest - 1}: {found.below} of {found.tried}"
        print(f"{number}. {question.words}: {found.bought} of {found.name}: {found.met} of {found.seeds}{below}", flush=True)


if __name__ == "__main__":
    main()
