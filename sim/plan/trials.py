"""Trials of a capacity plan: simulations of a choice, each at its own draw of the rates and of the workload, in several processes.

Trial i has the same draws whatever the choice and its count: common random numbers.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import NamedTuple

from sim.plan.choices import Choice
from sim.planned import PlannedPool, Study, check_all_fit, planned, run_planned
from sim.results.metrics import summarise
from sim.slo import Condition
from sim.workload.trace import Trace

CLOSEST = 0.02  # relative width to which the highest rate of a trial is found
MOST_FACTOR = 64.0


class Trial(NamedTuple):
    """How much of each condition's limit was used, and what the run gave: tokens per second of one user, and output tokens per second."""

    used: tuple[float, ...]
    user_tokens_per_s: float = math.nan
    output_tokens_per_s: float = math.nan

    @property
    def met(self) -> bool:
        """Whether every condition holds."""
        return bool(max(self.used) <= 1.0)


Run = Callable[[int, int, Iterable[int]], Iterable[Trial]]
"""(choice, count, trials) -> each of the trials."""


class Here:
    """Trials in this process: one count of a choice at a time."""

    def __init__(self, choices: Sequence[Choice], conditions: Sequence[Condition]) -> None:
        self._choices, self._conditions = choices, conditions
        self._key: tuple[int, int] = (-1, 0)
        self._study: Study
        self._pools: list[PlannedPool]

    def one(self, choice: int, count: int, trial: int, factor: float = 1.0) -> Trial:
        """A trial; requests arrive `factor` times as fast."""
        if self._key != (choice, count):
            self._study = self._choices[choice].study_of(count)
            self._pools = planned(self._study)
            self._key = (choice, count)
        study, trace = self._study, trace_of(self._study, trial)
        if factor != 1.0:
            trace = trace.rate_scaled(factor)
        check_all_fit(study, trace, self._pools)
        found = summarise(run_planned(study, self._pools, trace, trial), study.goodput)
        used = tuple(float(condition.use(found)) for condition in self._conditions)
        tpot = found["mean_tpot_ms"]
        return Trial(used, float(1e3 / tpot) if tpot else math.nan, float(found["output_throughput"]))

    def factor(self, choice: int, count: int, trial: int) -> float:
        """How many times as fast the requests of a trial may arrive (below MOST_FACTOR), by bisection; 0 where even a 64th is too fast.

        It takes for granted that a slower load does not do worse.
        """

        def met(factor: float) -> bool:
            return self.one(choice, count, trial, factor).met

        low, high, step = 1.0, 1.0, 1.25
        if met(1.0):
            while high < MOST_FACTOR and met(high := high * step):
                low = high
                step *= step
        else:
            while not met(low := low / step):
                high = low
                step *= step
                if low < 1 / MOST_FACTOR:
                    return 0.0
        while high > low * (1 + CLOSEST):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if met(middle) else (low, middle)
        return low


def trace_of(study: Study, trial: int) -> Trace:
    """The workload of a trial."""
    return study.workload.redraw(trial) if study.workload.redraw else study.workload.trace


_here: Here | None = None  # of a worker process


def _begin(choices: Sequence[Choice], conditions: Sequence[Condition]) -> None:
    global _here
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    _here = Here(choices, conditions)


def _one(asked: tuple[int, int, int]) -> Trial:
    assert _here is not None
    return _here.one(*asked)


def _factor(asked: tuple[int, int, int]) -> float:
    assert _here is not None
    return _here.factor(*asked)


class Runner:
    """Runs trials in `workers` processes, in this one if there is one."""

    def __init__(self, choices: Sequence[Choice], conditions: Sequence[Condition], workers: int, pool: ProcessPoolExecutor | None) -> None:
        self._here, self._workers, self._pool = Here(choices, conditions), workers, pool

    def trials(self, choice: int, count: int, trials: Iterable[int]) -> list[Trial]:
        """Trials, in order."""
        asked = [(choice, count, trial) for trial in trials]
        if self._pool is None:
            return [self._here.one(*each) for each in asked]
        return list(self._pool.map(_one, asked, chunksize=-(-len(asked) // (2 * self._workers))))

    def factors(self, choice: int, count: int, trials: Iterable[int]) -> list[float]:
        """Of each trial, how many times as fast its requests may arrive."""
        asked = [(choice, count, trial) for trial in trials]
        if self._pool is None:
            return [self._here.factor(*each) for each in asked]
        return list(self._pool.map(_factor, asked))


@contextmanager
def runner(choices: Sequence[Choice], conditions: Sequence[Condition], workers: int) -> Iterator[Runner]:
    """What runs trials; its processes end with the context."""
    if workers == 1:
        yield Runner(choices, conditions, 1, None)
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin, initargs=(choices, conditions))
    for _ in range(workers):
        pool.submit(int)  # they start now
    try:
        yield Runner(choices, conditions, workers, pool)
    finally:
        pool.shutdown(cancel_futures=True)
