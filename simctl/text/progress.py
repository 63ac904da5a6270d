"""Progress on stderr: on a terminal one line that changes; for a file, where it is asked for, lines."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

EVERY_S = 0.2
AFTER_S = 2.0  # work that takes no longer shows nothing


class LiveLine:
    """`requested` None: only on a terminal; True: everywhere; False: nowhere."""

    def __init__(self, requested: bool | None) -> None:
        self.live = sys.stderr.isatty() and requested is not False
        self.lines = bool(requested) and not self.live
        self._began, self._updated = time.monotonic(), 0.0

    @property
    def seconds(self) -> float:
        """Since the work began."""
        return time.monotonic() - self._began

    def due(self, every_s: float = EVERY_S) -> bool:
        """Whether the last text has stood for so long."""
        return time.monotonic() - self._updated > every_s

    def show(self, text: str) -> None:
        """Say it, after the time that has passed."""
        self._updated = time.monotonic()
        text = f"{self.seconds:.1f} s: {text}"
        if self.lines:
            click.echo(text, err=True)
        elif self.live:
            click.echo(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", err=True, nl=False)

    def end(self) -> None:
        """Leave a clean line."""
        if self.live and self._updated:
            click.echo("\r\x1b[K", err=True, nl=False)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yields what moves the line (done, of how many), or None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from threading import Timer

    line = LiveLine(None)
    later = Timer(AFTER_S, line.show, (what,))
    later.daemon = True
    later.start()

    def move(done: int, total: int) -> None:
        if line.seconds > AFTER_S and line.due():
            line.show(f"{what}: {done} of {total}")

    try:
        yield move
    finally:
        later.cancel()
        later.join()
        line.end()
