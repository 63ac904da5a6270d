"""Served runs worked on several at a time, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def in_processes(each: Callable[..., Any], paths: list[Path], more: tuple[Any, ...], report: Any) -> list[Any]:
    """Results of `each` for every path, in their order: several at a time, the longest first."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from sim.workers import cores, end_with_parent

    with ProcessPoolExecutor(min(len(paths), cores()), mp_context=get_context("spawn"), initializer=end_with_parent) as pool:
        tasks = {path: pool.submit(each, path, *more) for path in sorted(paths, key=lambda p: -p.stat().st_size)}
        for done, _ in enumerate(as_completed(tasks.values()), 1):
            if report:
                report(done, len(paths))
        return [tasks[path].result() for path in paths]
