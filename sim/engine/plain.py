"""One replica fed an open-loop workload, iteration by iteration: the readable definition that sim.engine.fast is
held to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.engine.boost import NO_BOOST, Boost
from sim.engine.overlap import Pipeline
from sim.engine.records import ReplicaRecord
from sim.engine.ticks import TICK_S, to_ticks
from sim.engine.types import DecidesAhead, Iteration, Request, Scheduler
from sim.errors import SimctlError


def next_iteration(scheduler: Scheduler) -> Iteration:
    """The scheduler's next decision; asked twice when the only request to run made room by leaving."""
    iteration = scheduler.schedule()
    if iteration.preempted and not iteration.scheduled:
        evicted, iteration = iteration.preempted, scheduler.schedule()
        iteration.preempted[:0] = evicted
    if not iteration.scheduled and scheduler.unfinished():
        raise SimctlError(f"the scheduler is stuck: {scheduler.unfinished()} requests and none can run")
    return iteration


def run_plain(
    requests: Sequence[Request],
    scheduler: Scheduler,
    ticks_of: Callable[..., int],
    host_of: Callable[[Iteration], int] = lambda _: 0,
    products_of: Callable[[Iteration], int] = lambda _: 0,
    boost: Boost = NO_BOOST,
) -> ReplicaRecord:
    """Serve `requests` (in order of arrival) to the end.

    At one instant, iterations complete before requests arrive, and requests arrive before the next decision. An
    iteration takes `ticks_of(iteration)`; of a scheduler that decides ahead, `ticks_of(iteration, head_start)`, and it keeps
    the host for `host_of(iteration)`; where it finds the GPU rested, as `boost` says by its `products_of(iteration)`, it takes
    `ticks_of(iteration, head_start, True)`. Raises UsageError for a request that can never fit.
    """
    run = _Run(requests, scheduler)
    if isinstance(scheduler, DecidesAhead):
        _run_ahead(run, scheduler, ticks_of, host_of, products_of, Pipeline(boost))
        return run.record()
    now = 0
    while True:
        run.arrive(now)
        iteration = next_iteration(scheduler)
        if not iteration.scheduled:
            if run.next_arrival is None:
                return run.record()
            now = run.next_arrival
            continue
        run.decided(iteration, now)
        now += ticks_of(iteration)
        run.complete(iteration, now)


def _run_ahead(
    run: _Run,
    scheduler: DecidesAhead,
    ticks_of: Callable[..., int],
    host_of: Callable[[Iteration], int],
    products_of: Callable[[Iteration], int],
    pipe: Pipeline,
) -> None:
    under_way: Iteration | None = None
    while True:
        run.arrive(pipe.decides)
        iteration = next_iteration(scheduler) if under_way is None else scheduler.ahead()
        if iteration is None or not iteration.scheduled:
            if under_way is not None:  # nothing follows it: its tokens are sent at its end
                run.complete(under_way, pipe.ends)
                under_way = None
                pipe.idle_until(pipe.ends)
            elif run.next_arrival is None:
                return
            else:
                pipe.idle_until(run.next_arrival)
            continue
        run.decided(iteration, pipe.decides)
        host, head_start = host_of(iteration), pipe.head_start
        if under_way is not None:
            run.complete(under_way, pipe.sends(host))
        products = products_of(iteration)
        rested = pipe.rested(products)
        ticks = ticks_of(iteration, head_start, True) if rested else ticks_of(iteration, head_start)
        pipe.launched(host, ticks, products, rested)
        under_way = iteration


class _Run:
    """The requests, which of them have arrived, and when what happened to each."""

    def __init__(self, requests: Sequence[Request], scheduler: Scheduler) -> None:
        self._requests = requests
        self._scheduler = scheduler
        self._arrivals = [to_ticks(request.arrival_s) for request in requests]
        self._row = {request: index for index, request in enumerate(requests)}
        self._scheduled, self._first, self._finish = (np.full(len(requests), np.nan) for _ in range(3))
        self._first_place, self._finish_place = (np.zeros(len(requests), dtype=np.int64) for _ in range(2))
        self._coming = self._iterations = 0

    @property
    def next_arrival(self) -> int | None:
        """Ticks; None when all have arrived."""
        return self._arrivals[self._coming] if self._coming < len(self._arrivals) else None

    def arrive(self, now: int) -> None:
        while self._coming < len(self._arrivals) and self._arrivals[self._coming] <= now:
            self._scheduler.add(self._requests[self._coming])
            self._coming += 1

    def decided(self, iteration: Iteration, now: int) -> None:
        for request in iteration.admitted:
            if not request.preemptions:
                self._scheduled[self._row[request]] = now * TICK_S

    def complete(self, iteration: Iteration, now: int) -> None:
        self._iterations += 1
        outcome = self._scheduler.complete(iteration)
        for place, request in enumerate(outcome.sampled):
            if request.generated_tokens == 1:
                self._first[self._row[request]] = now * TICK_S
                self._first_place[self._row[request]] = place
        for request, place in zip(outcome.finished, outcome.last_places(), strict=True):
            self._finish[self._row[request]] = now * TICK_S
            self._finish_place[self._row[request]] = place

    def record(self) -> ReplicaRecord:
        return ReplicaRecord(
            self._scheduled,
            self._first,
            self._finish,
            _column([request.cached_tokens for request in self._requests]),
            _column([request.preemptions for request in self._requests]),
            self._iterations,
            self._first_place,
            self._finish_place,
        )


def _column(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)
