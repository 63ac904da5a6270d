"""Cells through an executor, in whatever order they end, workers lost on the way."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from sim.errors import SimctlError
from sim.signals import deaf_to_ctrl_c
from sim.workers import end_with_parent

MOST_LOSSES = 10  # workers that one cell may lose before it is to blame
DESERTED_S = 120.0  # a scheduler without a worker for so long has none that will come back
GONE = "the scheduler went away; what was answered is kept, and the same command goes on from there"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerPool(NamedTuple):
    """An executor, how many cells it holds at once, the errors that say that a worker was lost and not that the cell is wrong, how
    many workers there are now, where they are other people's, and what to submit in place of an object that all cells use.
    """

    executor: Executor
    window: int
    lost: tuple[type[BaseException], ...] = ()
    workers: Callable[[], int] = lambda: 1
    shared: Callable[[Any], Any] = lambda every: every


Opened = Callable[[], AbstractContextManager[WorkerPool]]


def outcomes(
    cells: Mapping[int, Any], answer: Callable[[Any], Any], opened: Opened, tick_s: float = 0.2
) -> Iterator[list[tuple[int, Any]]]:
    """(place, answer) of every cell, in lists: whatever has ended since the last list, perhaps nothing, at least every `tick_s` seconds.

    A cell whose worker was lost is asked again. Raises SimctlError where it loses MOST_LOSSES of them, and whatever `answer` raises.
    """
    left, losses = dict(cells), Counter[int]()
    while left:
        with opened() as pool:
            try:
                yield from _of_pool(left, answer, pool, losses, tick_s)
            except BrokenExecutor:  # a process pool ends with any of its processes: all that was in it is asked again, of another
                losses[-1] += 1
                if losses[-1] >= MOST_LOSSES:
                    raise SimctlError(f"{losses[-1]} times a worker process died and no cell was answered: is memory short?") from None


def _of_pool(
    left: dict[int, Any], answer: Callable[[Any], Any], pool: WorkerPool, losses: Counter[int], tick_s: float
) -> Iterator[list[tuple[int, Any]]]:
    ended: SimpleQueue[tuple[int, Future[Any]]] = SimpleQueue()
    ahead = iter(list(left))
    flying, seen = 0, time.monotonic()

    def submit(place: int) -> None:
        pool.executor.submit(answer, left[place]).add_done_callback(lambda future: ended.put((place, future)))

    while left:
        while flying < pool.window and (place := next(ahead, None)) is not None:
            submit(place)
            flying += 1
        found = []
        for place, future in _drained(ended, tick_s):
            error = SimctlError(GONE) if future.cancelled() else future.exception()
            if error is None:
                found.append((place, future.result()))
                del left[place]
                losses[-1] = 0
                flying -= 1
            elif isinstance(error, pool.lost):
                losses[place] += 1
                if losses[place] >= MOST_LOSSES:
                    raise SimctlError(f"cell {place} lost {MOST_LOSSES} workers: is memory short?")
                submit(place)
            elif isinstance(error, BrokenExecutor):
                if found:
                    yield found
                raise error
            else:
                raise error
        if found or pool.workers():
            seen = time.monotonic()
        elif time.monotonic() - seen > DESERTED_S:
            raise SimctlError(f"no worker for {DESERTED_S:g} s: what was answered is kept, and the same command goes on from there")
        yield found


def _drained(ended: SimpleQueue[tuple[int, Future[Any]]], tick_s: float) -> Iterator[tuple[int, Future[Any]]]:
    """Cells that have ended; waits for the first."""
    try:
        yield ended.get(timeout=tick_s)
        while True:
            yield ended.get_nowait()
    except Empty:
        return


@contextmanager
def local_pool(workers: int) -> Iterator[WorkerPool]:
    """Processes of this machine, of one thread of linear algebra each. They end with the context, or with this process."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    executor = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=end_with_parent)
    try:
        with deaf_to_ctrl_c():
            for _ in range(workers):
                executor.submit(int)  # they start now, with that environment
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
    children = multiprocessing.active_children()
    try:
        yield WorkerPool(executor, 2 * workers)
    except BaseException:
        for child in children:  # nobody waits for the cells that they are at
            child.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)
