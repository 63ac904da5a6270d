"""Pareto front of deployments that meet an SLO: dollars per hour, tokens per second of one user, and per GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.planning.race import Candidate, Race, RaceResult

FIRST_TRIALS, TRIALS = 4, 20  # trials that size a choice, and that it has to stand in the end
MOST_TIMES = 4.0  # the winner's cost: no deployment beyond is looked at
MOST_SIZED = 30
FASTER = 1.03  # a choice that cannot be that much faster than a cheaper one is left out


@dataclass(frozen=True, slots=True)
class Point:
    """A deployment at the load asked for; figures are means over the same first trials."""

    candidate: Candidate
    usd_per_hour: float
    user_tokens_per_s: float
    gpu_tokens_per_s: float

    @property
    def usd_per_mtok(self) -> float:
        """USD per million output tokens."""
        return self.usd_per_hour / (3.6e-3 * self._tokens_per_s)

    @property
    def _tokens_per_s(self) -> float:
        return float(np.nanmean([trial.output_tokens_per_s for trial in self.candidate.trials[:TRIALS]]))

    def beats(self, other: Point) -> bool:
        """Whether it is as good in everything and better in something."""
        mine, theirs = self._merits(), other._merits()
        return all(a >= b for a, b in zip(mine, theirs, strict=True)) and mine != theirs

    def _merits(self) -> tuple[float, float, float]:
        return -self.usd_per_hour, self.user_tokens_per_s, self.gpu_tokens_per_s


def point_of(plan: RaceResult, candidate: Candidate) -> Point:
    """The figures of a count that was tried."""
    speed, tokens = (
        float(np.nanmean([getattr(trial, name) for trial in candidate.trials[:TRIALS]]))
        for name in ("user_tokens_per_s", "output_tokens_per_s")
    )
    return Point(candidate, plan.cost(candidate), speed, tokens / plan.choices[candidate.choice].gpus_of(candidate.replicas))


def front_of(plan: RaceResult, race: Race) -> list[Point]:
    """The front from the winner up, the cheapest first: choices that could be faster are sized by some trials, and stand TRIALS of them."""
    if plan.winner is None:
        return []
    found, limit = [point_of(plan, plan.winner)], MOST_TIMES * plan.cost(plan.winner)
    order = sorted((plan.choices[i].cost(each.fails + 1), each.unloaded_s, i) for i, each in enumerate(plan.states) if each.open)
    sized = 0
    for least, unloaded_s, i in order:
        fastest = 1.0 / unloaded_s if unloaded_s else math.inf
        cheaper = max((point.user_tokens_per_s for point in found if point.usd_per_hour <= least), default=0.0)
        if least > limit or sized == MOST_SIZED or i == plan.winner.choice or fastest < FASTER * cheaper:
            continue
        sized += 1
        candidate = race.sized(i, FIRST_TRIALS)
        if candidate is not None and plan.cost(candidate) <= limit and not any(p.beats(point_of(plan, candidate)) for p in found):
            candidate = race.sized(i, TRIALS)
            if candidate is not None:
                found.append(point_of(plan, candidate))
    return undominated(found)


def undominated(points: Sequence[Point]) -> list[Point]:
    """Points that no other one beats, the cheapest first; of equals the first."""
    unlike = list({point._merits(): point for point in reversed(points)}.values())
    return sorted((p for p in unlike if not any(other.beats(p) for other in unlike)), key=lambda p: p.usd_per_hour)
