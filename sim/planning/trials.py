"""Trials of a capacity plan: simulations of a choice, each at its own draw of the rates and of the workload, in several processes.

Trial i has the same draws whatever the choice and its count: common random numbers.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import NamedTuple

from sim.planning.choices import Choice
from sim.results.metrics import cost_shares, summarise
from sim.slo import Condition
from sim.study.run import PlannedPool, Study, check_all_fit, planned, run_planned
from sim.workload.trace import Trace

CLOSEST = 0.04  # relative width to which the highest rate of a trial is found
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
        return Trial(used, float(1e3 / tpot) if tpot else math.nan, _tokens_per_s(trace, found))

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


def _tokens_per_s(trace: Trace, found: Mapping[str, float]) -> float:
    """Output tokens per second in the long run: an open load's own rate, since who meets an SLO keeps up with it; else the run's."""
    span = float(trace.arrival_s[-1] - trace.arrival_s[0])
    return float(found["total_output_tokens"]) / span if span > 0.0 else float(found["output_throughput"])


def trace_of(study: Study, trial: int) -> Trace:
    """The workload of a trial."""
    return study.workload.redraw(trial) if study.workload.redraw else study.workload.trace


def cost_shares_of(study: Study) -> dict[str, float]:
    """Shares of the busy time by term of the step time, of one run at the median rates, largest first."""
    pools = planned(study)
    return cost_shares(run_planned(study, pools, study.workload.trace, keep_iterations=True))


_here: Here | None = None  # of a worker process


def _begin(choices: Sequence[Choice], conditions: Sequence[Condition]) -> None:
    global _here
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
    ours = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ours else None  # what starts inherits it: Ctrl-C is for this process
    for _ in range(workers):
        pool.submit(int)  # they start now
    if ours:
        signal.signal(signal.SIGINT, before)
    try:
        yield Runner(choices, conditions, workers, pool)
    finally:
        pool.shutdown(cancel_futures=True)
