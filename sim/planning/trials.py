"""Trials of a capacity plan: simulations of a choice, each at its own draw of the rates and of the workload, in several processes.

Trial i has the same draws whatever the choice and its count: common random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import takewhile
from multiprocessing import get_context
from time import thread_time
from typing import Any, NamedTuple

from sim.cluster.compiled import expect_many
from sim.errors import SimctlError
from sim.planning.choices import Choice
from sim.planning.cpu_budget import CpuBudget, OutOfTime
from sim.results.metrics import cost_shares, latency_figures
from sim.results.power import Power, power_of
from sim.results.token_cost import TokenCost, token_cost
from sim.signals import deaf_to_ctrl_c
from sim.slo import Condition
from sim.study.lasting import Lasts, Latency
from sim.study.run import planned, run_pools
from sim.study.studied import Study
from sim.sweeps.executor import GONE, Opened
from sim.workers import end_with_parent
from sim.workload.trace import Trace

CLOSEST = 0.04  # relative width to which the highest rate of a trial is found
MOST_FACTOR = 64.0
MOST_STEPS = int(math.log(MOST_FACTOR) / math.log1p(CLOSEST))  # of 1 + CLOSEST
LAZY_S = 1.5  # CPU seconds of trials in this process, before others are worth their start
LOOK_S = 0.25  # between looks at the budget while others simulate


class Trial(NamedTuple):
    """Share of each condition's limit that was used, throughput (tokens per second of one user, and output tokens per second), whether
    its queue `grows` without end, standard errors of `used` (none: exact), and the requests that each trial of its count needs (0: all).
    """

    used: tuple[float, ...]
    user_tokens_per_s: float = math.nan
    output_tokens_per_s: float = math.nan
    grows: bool = False
    error: tuple[float, ...] = ()
    requests: int = 0

    @property
    def met(self) -> bool:
        """Whether every condition seems to hold, and that for good."""
        return bool(max(self.used) <= 1.0) and not self.grows


Run = Callable[[int, int, Iterable[int]], Iterable[Trial]]
"""(choice, count, trials) -> each of the trials."""


class Here:
    """Trials in this process: one count of a choice at a time."""

    def __init__(self, choices: Sequence[Choice], conditions: Sequence[Condition], for_s: float | None = None) -> None:
        self._choices, self._conditions, self._for_s = choices, conditions, for_s
        self._held: tuple[tuple[int, int], Lasts] | None = None
        self.requests: dict[tuple[int, int], int] = {}  # of a trial, by choice and count: found by the first one

    def one(self, choice: int, count: int, trial: int, factor: float = 1.0) -> Trial:
        """A trial; requests arrive `factor` times as fast."""
        held = self._held
        if held is None or held[0] != (choice, count):
            chosen = self._choices[choice]
            held = self._held = ((choice, count), Lasts(chosen.study_of(count), self._for_s, chosen.lost(count)))
        load = held[1]
        load.requests = self.requests.get((choice, count), 0)
        goodput, names = load.study.goodput, [condition.figure for condition in self._conditions]

        def used(latency: Latency) -> list[float]:
            found = latency_figures(latency, names, goodput)
            return [float(condition.limit_used(found)) for condition in self._conditions]

        found = load.trial(trial, used, factor)
        self.requests[choice, count] = load.requests
        tpot = latency_figures(found.latency, ["mean_tpot_ms"])["mean_tpot_ms"]
        return Trial(found.used, float(1e3 / tpot) if tpot else math.nan, found.tokens_per_s, found.grows, found.error, load.requests)

    def factor(self, choice: int, count: int, trial: int, low: float = 1.0, enough: float = math.inf) -> float:
        """Power of 1 + CLOSEST by which the requests of a trial may arrive faster (below MOST_FACTOR), sought from `low` and by bisection.

        It is 0 where even a 64th is too fast, and `enough` where it is that or more.

        It takes for granted that a slower load does not do worse.
        """

        def met(steps: int) -> bool:
            return self.one(choice, count, trial, (1.0 + CLOSEST) ** steps).met

        at, high, step = steps_to(low), MOST_STEPS + 1, 6
        if not enough:
            return 0.0
        if enough < math.inf:
            high = steps_to(enough)
            if met(high):
                return enough
        if met(at):
            while (probe := at + step) < high:
                at, high, step = (probe, high, 2 * step) if met(probe) else (at, probe, step)
        else:
            high = at
            while (at := max(at - step, -MOST_STEPS - 1)) >= -MOST_STEPS and not met(at):
                high, step = at, 2 * step
        while high > at + 1:
            mid = (at + high) // 2
            at, high = (mid, high) if met(mid) else (at, mid)
        return (1.0 + CLOSEST) ** at if at >= -MOST_STEPS else 0.0


def steps_to(factor: float) -> int:
    """The power of 1 + CLOSEST that a factor is."""
    return round(math.log(factor) / math.log1p(CLOSEST))


def trace_of(study: Study, trial: int) -> Trace:
    """The workload of a trial."""
    return study.workload.redraw(trial) if study.workload.redraw else study.workload.trace


def once(choice: Choice, count: int) -> tuple[dict[str, float], Power | None, TokenCost | None]:
    """Shares of the busy time by term of the step time, largest first, what is drawn, and what tokens cost without what stands by: of one
    run at the median rates.
    """
    study = choice.study_of(count)
    record = run_pools(study, planned(study), study.workload.trace, keep_iterations=True)
    prices = [part.price for part in choice.parts for _ in range(count * part.replicas)]
    return cost_shares(record), power_of(record, study.servers), token_cost(record, prices)


_here: Here | None = None  # of a worker process


def _begin(here: Here) -> None:
    global _here
    _here = here
    end_with_parent()


def _one(what: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    assert _here is not None
    return _there(_here, what, *args)


def _knowing(requests: int, what: Callable[..., Any], here: Here, choice: int, count: int, *args: Any) -> Any:
    """What a trial finds, of which another process knows how many requests it needs."""
    here.requests.setdefault((choice, count), requests)
    return what(here, choice, count, *args)


def _there(here: Here, what: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """What a trial finds, and the CPU seconds that it took."""
    began_s = thread_time()
    return what(here, *args), thread_time() - began_s


class Runner:
    """Runs trials in this process and, once they have taken LAZY_S, in `workers` processes, or on the pool that `workers` opens, perhaps of
    other machines. Raises OutOfTime once `within_s` CPU seconds are spent, SimctlError where that pool is lost.
    """

    def __init__(self, here: Here, workers: int | Opened, within_s: float | None = None) -> None:
        expect_many()  # before time is counted by trials in plain Python
        self._here, self._workers = here, workers
        self._opened = ExitStack()
        self._lost: tuple[type[BaseException], ...] = ()
        self._elsewhere: Callable[..., Any] | None = None
        self._budget = CpuBudget(within_s)
        self._spent_s = 0.0
        self._kept: dict[tuple[Callable[..., Any], tuple[Any, ...]], Any] = {}  # found when time was up, perhaps not for good
        self._pool: ProcessPoolExecutor | None = None

    @property
    def spent_s(self) -> float:
        """CPU seconds so far."""
        return self._budget.spent_s

    def hold_back(self, share: float) -> None:
        """Leave this share of the budget for the end; 0 releases it."""
        self._budget.held_back = share

    def trials(self, choice: int, count: int, trials: Iterable[int], factor: float = 1.0) -> list[Trial]:
        """Trials, in order; requests come `factor` times as fast."""
        calls = [(choice, count, trial, factor) for trial in trials]
        return self._each(Here.one, calls, first=not self._here.requests.get((choice, count)))

    def know(self, requests: Mapping[tuple[int, int], int]) -> None:
        """Requests that trials need, by choice and count."""
        self._here.requests.update(requests)

    def factors(self, choice: int, count: int, trials: Sequence[int], lowest: int) -> list[float]:
        """Of each trial, how many times as fast its requests may arrive: the `lowest` ones of them, and of others that it is no less.

        A trial is looked at closely where it may be one of the lowest so far.
        """
        found: list[float] = []
        for begin in range(0, len(trials), 2 * lowest):
            near = (min(found) or 1.0, sorted(found)[lowest - 1]) if found else ()
            found += self._each(Here.factor, [(choice, count, trial, *near) for trial in trials[begin : begin + 2 * lowest]])
        return found

    def _each(self, what: Callable[..., Any], calls: Sequence[tuple[Any, ...]], first: bool = False) -> list[Any]:
        """Each of the calls; the `first` by itself, where it finds how many requests the others need."""
        done = [self._kept.pop((what, each)) for each in takewhile(lambda each: (what, each) in self._kept, calls)]
        try:
            if first and not done:
                self._add(what, calls[:1], done)
                self._here.requests.update({calls[0][:2]: each.requests for each in done})
            self._add(what, calls, done)
        except OutOfTime:
            self._kept.update(((what, each), found) for each, found in zip(calls, done, strict=False))
            raise
        return done

    def _add(self, what: Callable[..., Any], calls: Sequence[tuple[Any, ...]], done: list[Any]) -> None:
        """What is found by the calls that are not done."""
        for each in calls[len(done) :]:
            if self._workers != 1 and self._spent_s > LAZY_S:
                break
            self._budget.check()
            found, cpu_s = _there(self._here, what, *each)
            done.append(found)
            self._spent_s += cpu_s
        if len(done) < len(calls):
            submit = self._submit()
            futures = [submit(partial(_knowing, self._here.requests.get(each[:2], 0), what), *each) for each in calls[len(done) :]]
            begun = len(done)
            try:
                done.extend(self._result(future) for future in futures)  # one by one: those before time is up are there
            except OutOfTime:
                under_way = [future for future in reversed(futures[len(done) - begun :]) if not future.cancel()]
                if self._budget.held_back:
                    done.extend(future.result()[0] for future in reversed(under_way))
                raise
            except BaseException as error:
                if not isinstance(error, (CancelledError, *self._lost)):
                    raise
                raise SimctlError(GONE.partition(";")[0]) from None

    def _result(self, future: Future[tuple[Any, float]]) -> Any:
        while True:
            try:
                found, cpu_s = future.result(LOOK_S)
            except TimeoutError:
                self._budget.check()
            else:
                self._budget.add(cpu_s)
                return found

    def _submit(self) -> Callable[..., Any]:
        if isinstance(self._workers, int):
            local: Callable[..., Any] = self._processes().submit
            return partial(local, _one)
        if self._elsewhere is None:
            pool = self._opened.enter_context(self._workers())
            remote: Callable[..., Any] = pool.executor.submit
            self._lost, self._elsewhere = pool.lost, partial(remote, _there, pool.shared(self._here))
        return self._elsewhere

    def _processes(self) -> ProcessPoolExecutor:
        if self._pool is None:
            assert isinstance(self._workers, int)
            self._pool = ProcessPoolExecutor(self._workers, mp_context=get_context("spawn"), initializer=_begin, initargs=(self._here,))
            with deaf_to_ctrl_c():
                for _ in range(self._workers):
                    self._pool.submit(int)  # they start now
            self._budget.processes = self._pool._processes or ()
        return self._pool

    def close(self) -> None:
        """End its processes, whatever they are doing, and leave those of others."""
        self._opened.close()
        if self._pool is not None:
            processes = list((self._pool._processes or {}).values())
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()
            for process in processes:
                process.join()


@contextmanager
def runner(
    choices: Sequence[Choice],
    conditions: Sequence[Condition],
    workers: int | Opened,
    for_s: float | None = None,
    within_s: float | None = None,
) -> Iterator[Runner]:
    """Runner of trials of a load that lasts `for_s` (None: for good), for `within_s` CPU seconds; its processes end with the context."""
    running = Runner(Here(choices, conditions, for_s), workers, within_s)
    try:
        yield running
    finally:
        running.close()
