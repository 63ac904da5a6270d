"""Schedulers as a user might get them wrong."""

from sim.engine.types import Iteration, Outcome
from sim.engine.vllm import VllmScheduler


class Idle(VllmScheduler):
    """Never runs what waits."""

    def schedule(self) -> Iteration:
        return Iteration([])


class Endless(VllmScheduler):
    """Runs, and never gets anywhere."""

    def complete(self, iteration: Iteration) -> Outcome:
        return Outcome([], [])
