"""A progress bar on stderr for work that takes longer than 2 s, where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

AFTER_S = 2.0
_open: list[Progress] = []  # the bar there is: work within work is a line of it


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yields what moves the bar (done, of how many), or None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with _bar() as bar:
        task = bar.add_task(what, total=None)
        try:
            yield lambda done, total: bar.update(task, completed=done, total=total)
        finally:
            bar.remove_task(task)


@contextmanager
def _bar() -> Iterator[Progress]:
    if _open:
        yield _open[0]
        return
    from threading import Timer

    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    later = Timer(AFTER_S, bar.start)
    later.daemon = True
    _open.append(bar)
    later.start()
    try:
        yield bar
    finally:
        _open.clear()
        later.cancel()
        later.join()
        if bar.live.is_started:
            bar.stop()
