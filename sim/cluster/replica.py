"""Replicas: engines taking turns with time, each with its own model, GPU, engine and cost. They start, drain, stop and fail.

A replica knows nothing of its engine but when it goes on: one event per iteration of an engine stepped one by one, one per stretch of the
fast path. Both kinds run under the same clients, router, clock and log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from sim.cluster.clock import Clock
from sim.cost.api_server import SendQueue
from sim.engine.interface import Cancels, KeepsTime, Request, Scheduler, ShowsCache, StepCost
from sim.engine.loop import Step, Wait, engine_loop
from sim.engine.schedulers import LlamaCppScheduler, SglangScheduler
from sim.errors import SimctlError, UsageError
from sim.results.record import RunLog
from sim.ticks import DECISION

MOST_FRUITLESS = 1000  # iterations in a row, beside those that unfinished requests have tokens for

Finish = Callable[[Request, float], None]
"""Called with a request that an engine has finished, and how many tokens were before its last one at the API server."""


class Engine(Protocol):
    """Engine of a replica. `terms` name the parts of its step time."""

    @property
    def terms(self) -> tuple[str, ...]: ...

    def add(self, request: Request, now: int) -> Wait:
        """Queue a request. Returns when the engine goes on where that is sooner than it said. UsageError when it can never fit."""

    def cancel(self, request: Request) -> None:
        """Drop a request that is inside."""

    def cached_blocks(self, request: Request) -> int:
        """Leading KV blocks of its prompt that the cache holds now. UsageError where the engine cannot say."""

    @property
    def takes_kv(self) -> bool:
        """Whether the first blocks of a prompt may come from elsewhere."""

    def gauges(self) -> tuple[int, int, int]:
        """Requests that wait and that run, and KV blocks in use, as an engine's metrics say now."""

    def run(self, log: RunLog, replica: int, finish: Finish, now: int) -> Generator[Wait, int, None]:
        """Yield when to go on (None: when a request has come); be sent the time it then is."""


class SteppedEngine:
    """An engine stepped iteration by iteration: any scheduler and any cost."""

    def __init__(self, scheduler: Scheduler, cost: StepCost) -> None:
        self.scheduler = scheduler
        self.terms = cost.terms
        self._cost = cost
        self._outstanding_tokens = 0  # tokens of all unfinished requests: an iteration computes one at least

    def add(self, request: Request, now: int) -> Wait:
        if request.cancel_s < math.inf and not isinstance(self.scheduler, Cancels):
            raise UsageError(f"request {request.request_id!r} has cancel_s, and the engine cannot drop requests; vllm can")
        self.scheduler.add(request)
        self._outstanding_tokens += request.prompt_tokens + request.output_tokens
        return (now, DECISION) if isinstance(self.scheduler, KeepsTime) and self.scheduler.idle else None

    def cached_blocks(self, request: Request) -> int:
        """Leading KV blocks of its prompt that the cache holds; UsageError where the engine cannot say."""
        if not isinstance(self.scheduler, ShowsCache):
            raise UsageError("this engine does not show its prefix cache to routers and networks; vllm and sglang do")
        return self.scheduler.cached_blocks(request)

    @property
    def takes_kv(self) -> bool:
        """Whether the first blocks of a prompt may come from elsewhere: SGLang's radix tree is filled by its own requests alone."""
        return isinstance(self.scheduler, ShowsCache) and not isinstance(self.scheduler, SglangScheduler | LlamaCppScheduler)

    def gauges(self) -> tuple[int, int, int]:
        """Requests that wait and that run, and KV blocks in use."""
        waiting = self.scheduler.waiting()
        return waiting, self.scheduler.unfinished() - waiting, self.scheduler.kv_blocks_used()

    def cancel(self, request: Request) -> None:
        assert isinstance(self.scheduler, Cancels)
        self.scheduler.cancel(request)  # what it is owed stays, as a bound

    def run(self, log: RunLog, replica: int, finish: Finish, now: int) -> Generator[Wait, int, None]:
        fruitless = 0  # iterations in a row without a token for anybody
        queue = SendQueue(log.token_ticks[replica])

        def collect(step: Step, now: int) -> None:
            nonlocal fruitless
            outcome = self.scheduler.complete(step.iteration)
            ahead = queue.ahead(now, len(outcome.sampled))
            places = [ahead + place for place in outcome.last_places()]
            fruitless = 0 if outcome.sampled else fruitless + 1
            if fruitless > 2 * self._outstanding_tokens + MOST_FRUITLESS:
                raise SimctlError(f"the scheduler does not finish: {fruitless} iterations in a row, and none gave a request a token")
            log.iteration(replica, step, now, outcome, ahead, places)
            for request, place in zip(outcome.finished, places, strict=True):
                self._outstanding_tokens -= request.prompt_tokens + request.output_tokens
                finish(request, place)

        return engine_loop(self.scheduler, self._cost, collect, now)


ACTIONS = ("start", "drain", "fail")


class State(Enum):
    """`UP` takes requests, `DRAINING` finishes those it has, `DOWN` has none and takes none."""

    DOWN, UP, DRAINING = range(3)


@dataclass(frozen=True, slots=True)
class Change:
    """At `at_s` a replica does something: `start`, `drain` (stop when it has served what it was sent) or `fail` (at once)."""

    at_s: float
    replica: int
    action: str

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise UsageError(f"a replica can start, drain or fail, not {self.action!r}")


class Replica:
    """One engine behind a router, and after it those that `spare` makes. `sent` counts requests that it was sent and that have not
    left; its engine has those `inside`.
    """

    def __init__(self, clock: Clock, index: int, engine: Engine, spare: Callable[[], Engine] | None = None) -> None:
        self.index = index
        self.engine = engine
        self._spare = spare
        self._used = False
        self.stopped = 0  # when it last went down
        self.state = State.DOWN
        self.sent = 0
        self._clock = clock
        self.inside: dict[Request, None] = {}
        self.adapters: dict[str, int] = {}  # those that it holds, the latest asked for last, and when each is loaded
        self._wakes = 0  # the latest call to go on; earlier ones are stale
        self._idle = False

    def start(self, log: RunLog, finish: Finish) -> None:
        """Take requests from now on, with an empty cache; a replica that drains takes them again. UsageError without a fresh engine."""
        if self.state is not State.DOWN:
            self.state = State.UP
            return
        if self._used:
            if self._spare is None:
                raise UsageError(f"replica {self.index} has started before, and has no other engine")
            self.engine = self._spare()
            self.adapters.clear()
        self._used = True
        self._idle = False
        self._go = self.engine.run(log, self.index, finish, self._clock.now).send
        self._wait(self._go(None))  # type: ignore[arg-type]  # as a generator begins
        self.state = State.UP

    def drain(self) -> None:
        """Take no more requests; stop when the last has left."""
        if self.state is State.UP:
            self.state = State.DRAINING
            self._stop_when_empty()

    def _stop_when_empty(self) -> None:
        if not self.sent and self.state is State.DRAINING:
            self.state = State.DOWN
            self.stopped = self._clock.now

    def fail(self) -> list[Request]:
        """Stop at once, KV and iteration under way lost: the requests inside, which keep the tokens that were sent."""
        if self.state is not State.DOWN:
            self.stopped = self._clock.now
        self.state = State.DOWN
        self._wakes += 1
        lost, self.inside = list(self.inside), {}
        for request in lost:
            request.preemptions += 1
        return lost

    def submit(self, request: Request) -> None:
        """Hand the request to the engine. Raises UsageError when it can never fit."""
        self.inside[request] = None
        sooner = self.engine.add(request, self._clock.now)
        if self._idle:
            self._idle = False
            self._wait((self._clock.now, DECISION))
        elif sooner is not None:
            self._wait(sooner)

    def cancel(self, request: Request) -> None:
        """The client of `request`, which is inside or on its way in, has given up."""
        if request in self.inside:
            self.engine.cancel(request)
        self.left(request)

    def served(self, request: Request) -> None:
        """The engine finished the request, which has not left yet: its KV is still needed."""
        self.inside.pop(request, None)

    def left(self, request: Request) -> None:
        """The engine finished the request, or it was lost on its way in."""
        self.inside.pop(request, None)
        self.sent -= 1
        self._stop_when_empty()

    def _wait(self, wait: Wait) -> None:
        self._wakes += 1
        if wait is None:
            self._idle = True
        else:
            self._clock.call(wait[0], wait[1], self.index + 1, self._go_on, self._wakes)

    def _go_on(self, wake: int) -> None:
        if wake != self._wakes:
            return
        clock = self._clock
        now = clock.now
        wait = self._go(now)
        # nothing else happens before a decision now: no need to queue for it
        while wait is not None and wait[0] == now and wait[1] == DECISION and clock.quiet():
            wait = self._go(now)
        self._wait(wait)
