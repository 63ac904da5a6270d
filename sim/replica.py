"""A replica: one engine, taking turns with time. Decide an iteration, price it, let the time pass, tell the scheduler it is done.

One event per iteration, whatever the batch. The replica knows neither policy (the scheduler's) nor cost (the price of the bill).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import simpy

from sim.clock import COMPLETION, DECISION, Clock
from sim.engine.boost import Boost
from sim.engine.overlap import Pipeline
from sim.engine.plain import next_iteration
from sim.engine.ticks import TICK_S
from sim.engine.types import DecidesAhead, Iteration, Request, Scheduler
from sim.errors import SimctlError
from sim.runlog import RunLog

MOST_FRUITLESS = 1000  # iterations in a row, beside those that unfinished requests have tokens for


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

    def host(self, iteration: Iteration) -> int:
        """Ticks for which an iteration keeps the host, its requests at whatever stage."""

    @property
    def boost(self) -> Boost:
        """What products take less on a GPU that has rested."""

    def products(self, iteration: Iteration) -> int:
        """Ticks of products in the iteration as decided, before its requests advance."""

    def __call__(self, iteration: Iteration, head_start: int = 0, rested: bool = False) -> StepPrice:
        """Ticks of the iteration, begun on the host so many ticks before the GPU was free for it, which had rested or not, and its
        seconds by term.
        """


class Replica:
    """One engine behind a router. `on_finish(request, index, place)` is told of every request that completes, where, and which of its
    iteration's tokens was its last (0 the first).
    """

    def __init__(
        self,
        clock: Clock,
        index: int,
        scheduler: Scheduler,
        cost: StepCost,
        log: RunLog,
        on_finish: Callable[[Request, int, int], None],
    ) -> None:
        self.index = index
        self.scheduler = scheduler
        self._clock = clock
        self._cost = cost
        self._log = log
        self._on_finish = on_finish
        self._idle: simpy.Event | None = None
        self._fruitless = 0  # iterations in a row without a token for anybody
        self._owed = 0  # tokens of all unfinished requests: an iteration computes one at least
        clock.process(self._run_ahead(scheduler) if isinstance(scheduler, DecidesAhead) else self._run())

    def submit(self, request: Request) -> None:
        """Hand the request to the engine. Raises UsageError when it can never fit."""
        self.scheduler.add(request)
        self._owed += request.prompt_tokens + request.output_tokens
        if self._idle is not None:
            self._clock.fire(self._idle, self._clock.ticks, DECISION)
            self._idle = None

    def _run(self) -> Generator[simpy.Event, None, None]:
        clock, scheduler, cost = self._clock, self.scheduler, self._cost
        while True:
            iteration = next_iteration(scheduler)
            if not iteration.scheduled:
                yield self._sleep()
                continue
            decision = self._decision(iteration, clock.ticks)
            decision.price = cost(iteration)
            start = clock.ticks
            yield clock.at(start + decision.price.ticks, COMPLETION)
            yield from self._complete(decision, start)

    def _run_ahead(self, scheduler: DecidesAhead) -> Generator[simpy.Event, None, None]:
        clock, cost, pipe = self._clock, self._cost, Pipeline(self._cost.boost)
        under_way: _Decision | None = None
        started = 0
        while True:
            iteration = next_iteration(scheduler) if under_way is None else scheduler.ahead()
            if iteration is None or not iteration.scheduled:
                if under_way is None:
                    yield self._sleep()
                else:  # nothing follows it: its tokens are sent at its end
                    yield clock.at(pipe.ends, COMPLETION)
                    yield from self._complete(under_way, started)
                    under_way = None
                pipe.idle_until(clock.ticks)
                continue
            decision = self._decision(iteration, clock.ticks)
            host, head_start = cost.host(iteration), pipe.head_start
            sends = pipe.sends(host)
            if under_way is not None:
                yield clock.at(sends, COMPLETION)
                yield from self._complete(under_way, started)
                started = clock.ticks
            else:
                started = clock.ticks
                if sends > started:
                    yield clock.at(sends, DECISION)
            products = cost.products(iteration)
            rested = pipe.rested(products)
            decision.price = cost(iteration, head_start, rested)
            pipe.launched(host, decision.price.ticks, products, rested)
            under_way = decision

    def _sleep(self) -> simpy.Event:
        self._idle = self._clock.event()
        return self._idle

    def _decision(self, iteration: Iteration, now: int) -> _Decision:
        waiting = self.scheduler.waiting()
        return _Decision(iteration, now, waiting, self.scheduler.unfinished() - waiting, self.scheduler.kv_blocks_used())

    def _complete(self, decision: _Decision, start: int) -> Generator[simpy.Event, None, None]:
        """The iteration's tokens are sent, now; whatever else happens at this instant comes before the next decision."""
        clock, price = self._clock, decision.price
        assert price is not None
        end = clock.ticks
        outcome = self.scheduler.complete(decision.iteration)
        places = outcome.last_places()
        self._fruitless = 0 if outcome.sampled else self._fruitless + 1
        if self._fruitless > 2 * self._owed + MOST_FRUITLESS:
            raise SimctlError(f"the scheduler does not finish: {self._fruitless} iterations in a row, and none gave a request a token")
        self._log.iteration(
            self.index,
            start * TICK_S,
            end * TICK_S,
            decision.iteration,
            outcome,
            places,
            decided_s=decision.now * TICK_S,
            running=decision.running,
            waiting=decision.waiting,
            prefill_tokens=price.prefill_tokens,
            kv_blocks_used=decision.kv_blocks_used,
            terms=price.terms,
        )
        for request, place in zip(outcome.finished, places, strict=True):
            self._owed -= request.prompt_tokens + request.output_tokens
            self._on_finish(request, self.index, place)
        if clock.peek() <= end:
            yield clock.at(end, DECISION)


@dataclass(slots=True)
class _Decision:
    """An iteration, when it was decided, what the engine looked like then, and what it costs."""

    iteration: Iteration
    now: int
    waiting: int
    running: int
    kv_blocks_used: int
    price: StepPrice | None = None
