"""Schedulers as a user might get them wrong."""

from sim.engine.interface import Iteration, Outcome
from sim.engine.schedulers import VllmScheduler


class Idle(VllmScheduler):
    """Never runs what waits."""

    def schedule(self) -> Iteration:
        return Iteration([])


class Endless(VllmScheduler):
    """Runs, and never gets anywhere."""

    def complete(self, iteration: Iteration) -> Outcome:
        return Outcome([], [])


class Hasty(VllmScheduler):
    """Says that requests are done that were given nothing."""

    def complete(self, iteration: Iteration) -> Outcome:
        super().complete(iteration)
        return Outcome([], [request for request, _ in iteration.scheduled])
