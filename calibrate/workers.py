"""Worker processes: chains sample on two cores at once, which threads of one process do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def worker_processes(count: int = 2) -> Iterator[Executor]:
    """The processes, which start at the first tasks. What they have not begun when this ends is dropped."""
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:  # a fork would inherit locks of threads that it has not
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def begun(workers: Executor | None, task: Callable[P, T], *args: P.args, **named: P.kwargs) -> Callable[[], T]:
    """The task, given to the workers; call what it returns for its result. Without workers it is done then."""
    if workers is None:
        return lambda: task(*args, **named)
    return workers.submit(task, *args, **named).result
