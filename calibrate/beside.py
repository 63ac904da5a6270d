"""A process beside this one, for what nothing here waits for: two cores then compile, sample and fit at once, which threads of one process
do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def process_beside() -> Iterator[Executor]:
    """The process, which starts at the first task and takes one at a time. What it has not begun when this ends is dropped."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:  # a fork would inherit locks of threads that it has not
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def begun(beside: Executor | None, task: Callable[P, T], *args: P.args, **named: P.kwargs) -> Callable[[], T]:
    """The task, given to the process beside this one; call what it returns for its result. Without such a process it is done then."""
    if beside is None:
        return lambda: task(*args, **named)
    return beside.submit(task, *args, **named).result
