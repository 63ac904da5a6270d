"""One replica fed an open-loop workload, iteration by iteration: the readable definition that sim.engine.fast is
held to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.engine.records import ReplicaRecord
from sim.engine.steptime import TICK_S, to_ticks
from sim.engine.types import Iteration, Request, Scheduler
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


def run_plain(requests: Sequence[Request], scheduler: Scheduler, ticks_of: Callable[[Iteration], int]) -> ReplicaRecord:
    """Serve `requests` (in order of arrival) to the end.

    At one instant, iterations complete before requests arrive, and requests arrive before the next decision. Raises
    UsageError for a request that can never fit.
    """
    arrivals = [to_ticks(request.arrival_s) for request in requests]
    row = {request: index for index, request in enumerate(requests)}
    scheduled, first, finish = (np.full(len(requests), np.nan) for _ in range(3))
    now = iterations = coming = 0
    while True:
        while coming < len(requests) and arrivals[coming] <= now:
            scheduler.add(requests[coming])
            coming += 1
        iteration = next_iteration(scheduler)
        if not iteration.scheduled:
            if coming == len(requests):
                break
            now = arrivals[coming]
            continue
        for request in iteration.admitted:
            if not request.preemptions:
                scheduled[row[request]] = now * TICK_S
        now += ticks_of(iteration)
        iterations += 1
        outcome = scheduler.complete(iteration)
        for request in outcome.sampled:
            if request.generated_tokens == 1:
                first[row[request]] = now * TICK_S
        for request in outcome.finished:
            finish[row[request]] = now * TICK_S
    return ReplicaRecord(
        scheduled,
        first,
        finish,
        _column([request.cached_tokens for request in requests]),
        _column([request.preemptions for request in requests]),
        iterations,
    )


def _column(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)
