"""Several plans at once: pools of other models or tenants, each planned by itself, and one bill and one chance for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.planning.answer import PlanAnswer
from sim.results.chance import CERTAINTY


@dataclass(frozen=True, slots=True)
class Together:
    """GPUs and USD per hour of all, and the chance that all meet their SLO: it is at least 1 less what each misses, whatever they have in
    common, such as the rates of a GPU. `chance_low` is by the lower ends of their intervals.
    """

    gpus: int
    usd_per_hour: float
    chance: float
    chance_low: float

    @property
    def text(self) -> str:
        """The sum in words."""
        short = "" if self.chance >= CERTAINTY else f" That is below {CERTAINTY:g}: each has that chance by itself only."
        return (
            f"=> Together: {self.gpus} GPUs, {self.usd_per_hour:.2f} USD/hour. All meet their SLOs with a chance of at least "
            f"{self.chance:.2f} ({self.chance_low:.2f} by the trials' lower ends), whatever they share.{short} Each was planned by itself."
        )


def together(answers: Sequence[PlanAnswer]) -> Together | None:
    """The sum of several plans; None where one has no winner."""
    found = [(answer.plan, win) for answer in answers if (win := answer.plan.winner) is not None]
    if len(found) < len(answers):
        return None
    gpus = sum(plan.choices[win.choice].gpus_of(win.replicas) for plan, win in found)
    chance, low = (
        max(1.0 - sum(1.0 - each for each in of), 0.0) for of in zip(*((w.chance.value, w.chance.low) for _, w in found), strict=True)
    )
    return Together(gpus, sum(plan.cost(win) for plan, win in found), chance, low)
