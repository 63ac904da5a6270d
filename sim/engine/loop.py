"""The engine loop: decide an iteration, price it, let the time pass, collect its tokens, decide again.

One loop for engines that wait for their GPU and for those that decide an iteration while the one before it runs (the two clocks of
sim.engine.overlap). It knows no policy (the scheduler's), no cost (the price's) and no time of its own: a driver lets the time pass.
Drivers are the replica of the event-driven simulation (sim.cluster.replica) and the tests' open loop; the engine in rows
(sim.engine.rows) keeps the same clocks and is held to this loop tick by tick.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from sim.engine.interface import DecidesAhead, Iteration, KeepsTime, Request, Scheduler, StepCost, StepPrice
from sim.engine.overlap import Pipeline
from sim.errors import SimctlError
from sim.ticks import COMPLETION, DECISION

Wait = tuple[int, int] | None
"""When the loop goes on: (ticks, rank within that instant); None: when a request has come."""


@dataclass(slots=True)
class Step:
    """An iteration, when it was decided (ticks), what the engine looked like then, when it began and what it costs."""

    iteration: Iteration
    decided: int
    waiting: int
    running: int
    kv_blocks_used: int
    started: int = 0
    price: StepPrice | None = None


def engine_loop(scheduler: Scheduler, cost: StepCost, collect: Callable[[Step, int], None], start: int = 0) -> Generator[Wait, int, None]:
    """Yield when to go on; be sent the time it then is.

    `collect(step, now)` is called when the tokens of an iteration are sent; it completes the iteration at the scheduler. At one instant
    iterations complete, then requests arrive, then the next decision is made: a decision waits for its rank.
    """
    clocks, under_way = Pipeline(), None
    ahead = scheduler.ahead if isinstance(scheduler, DecidesAhead) else None
    timed = scheduler if isinstance(scheduler, KeepsTime) else None
    evicted: list[Request] = []  # by decisions that then wait for a copy
    now = yield start, DECISION
    while True:
        if timed is not None:
            timed.at(now)
        if under_way is None:
            clocks.idle_until(now)
            iteration: Iteration | None = next_iteration(scheduler)
        else:
            iteration = ahead() if ahead is not None else None
        if iteration is None or not iteration.scheduled:
            if under_way is None:
                wakes = timed.wakes() if timed is not None else None
                evicted += iteration.preempted if iteration is not None and wakes is not None else []
                if timed is not None:
                    timed.idle = wakes is not None
                now = yield None if wakes is None else (wakes, DECISION)
                continue
            now = yield clocks.ends, COMPLETION  # nothing follows it: its tokens are sent at its end
            collect(under_way, now)
            under_way = None
            now = yield now, DECISION
            continue
        iteration.preempted[:0], evicted = evicted, []
        waiting = scheduler.waiting()
        step = Step(iteration, now, waiting, scheduler.unfinished() - waiting, scheduler.kv_blocks_used())
        host, head_start = (cost.host(iteration) if ahead is not None else 0), clocks.head_start
        if under_way is not None:
            now = yield clocks.sends(host), COMPLETION
            collect(under_way, now)
        step.started, step.price, computed = now, cost(iteration, head_start), max(now, clocks.ends)
        clocks.launched(host, step.price.ticks)
        if timed is not None:
            timed.launched(now, computed, clocks.ends)
        under_way = step
        if ahead is not None:
            now = yield clocks.decides, DECISION


def next_iteration(scheduler: Scheduler) -> Iteration:
    """The scheduler's next decision; asked twice when the only request to run made room by leaving."""
    iteration = scheduler.schedule()
    if iteration.preempted and not iteration.scheduled:
        evicted, iteration = iteration.preempted, scheduler.schedule()
        iteration.preempted[:0] = evicted
    stuck = not iteration.scheduled and scheduler.unfinished()
    if stuck and not (isinstance(scheduler, KeepsTime) and scheduler.wakes() is not None):
        raise SimctlError(f"the scheduler is stuck: {scheduler.unfinished()} requests and none can run")
    return iteration
