"""Progress line on stderr: on a terminal one line that changes; for a file, where somebody asked for it, lines."""

from __future__ import annotations

import shutil
import sys
import time

import click

EVERY_S = 0.2


class LiveLine:
    """`asked` None: only on a terminal; True: everywhere; False: nowhere."""

    def __init__(self, asked: bool | None) -> None:
        self.live = sys.stderr.isatty() and asked is not False
        self.lines = bool(asked) and not self.live
        self._began, self._shown = time.monotonic(), 0.0

    @property
    def seconds(self) -> float:
        """Since the work began."""
        return time.monotonic() - self._began

    def due(self, every_s: float = EVERY_S) -> bool:
        """Whether the last text has stood for so long."""
        return time.monotonic() - self._shown > every_s

    def show(self, text: str) -> None:
        """Say it, after the time that has passed."""
        self._shown = time.monotonic()
        text = f"{self.seconds:.1f} s: {text}"
        if self.lines:
            click.echo(text, err=True)
        elif self.live:
            click.echo(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", err=True, nl=False)

    def end(self) -> None:
        """Leave a clean line."""
        if self.live:
            click.echo("\r\x1b[K", err=True, nl=False)
