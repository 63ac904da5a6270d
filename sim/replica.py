"""A replica: one engine, taking turns with time. Decide an iteration, price it, let the time pass, tell the scheduler it is done.

One event per iteration, whatever the batch. The replica knows neither policy (the scheduler's) nor cost (the price of the bill).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol

import simpy

from sim.clock import COMPLETION, DECISION, Clock
from sim.engine.plain import next_iteration
from sim.engine.steptime import TICK_S
from sim.engine.types import Iteration, Request, Scheduler
from sim.runlog import RunLog


class StepPrice(NamedTuple):
    """What one iteration costs: ticks in all, seconds by term (in the order of StepCost.terms), and its prefill tokens."""

    ticks: int
    terms: Sequence[float]
    prefill_tokens: int


class StepCost(Protocol):
    """Prices an iteration as decided: called before the scheduler advances its requests."""

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the terms that make up the duration."""

    def __call__(self, iteration: Iteration) -> StepPrice:
        """Ticks of the iteration, and its seconds by term."""


class Replica:
    """One engine behind a router. `on_finish(request, index)` is told of every request that completes, and where."""

    def __init__(
        self,
        clock: Clock,
        index: int,
        scheduler: Scheduler,
        cost: StepCost,
        log: RunLog,
        on_finish: Callable[[Request, int], None],
    ) -> None:
        self.index = index
        self.scheduler = scheduler
        self._clock = clock
        self._cost = cost
        self._log = log
        self._on_finish = on_finish
        self._idle: simpy.Event | None = None
        clock.process(self._run())

    def submit(self, request: Request) -> None:
        """Hand the request to the engine. Raises UsageError when it can never fit."""
        self.scheduler.add(request)
        if self._idle is not None:
            self._clock.fire(self._idle, self._clock.ticks, DECISION)
            self._idle = None

    def _run(self) -> Generator[simpy.Event, None, None]:
        clock, scheduler, cost, log = self._clock, self.scheduler, self._cost, self._log
        while True:
            iteration = next_iteration(scheduler)
            if not iteration.scheduled:
                self._idle = clock.event()
                yield self._idle
                continue
            waiting = scheduler.waiting()
            running = scheduler.unfinished() - waiting
            used = scheduler.kv_blocks_used()
            price = cost(iteration)
            start = clock.ticks
            yield clock.at(start + price.ticks, COMPLETION)
            outcome = scheduler.complete(iteration)
            end = clock.ticks
            log.iteration(
                self.index,
                start * TICK_S,
                end * TICK_S,
                iteration,
                outcome,
                running=running,
                waiting=waiting,
                prefill_tokens=price.prefill_tokens,
                kv_blocks_used=used,
                terms=price.terms,
            )
            for request in outcome.finished:
                self._on_finish(request, self.index)
            if clock.peek() <= end:  # something else happens at this instant: let it, then decide
                yield clock.at(end, DECISION)
