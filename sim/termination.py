"""SIGTERM as an interruption: what a command does at Ctrl-C it does then, too, and its exit code is 143."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_came = threading.Event()


def came() -> bool:
    """Whether SIGTERM has come."""
    return _came.is_set()


def note() -> None:
    """SIGTERM has come: for handlers that do more than `interrupt`."""
    _came.set()


def interrupt(*_: Any) -> None:
    """Handler of SIGTERM: raises KeyboardInterrupt in the main thread."""
    note()
    raise KeyboardInterrupt


@contextmanager
def as_interruption() -> Iterator[None]:
    """SIGTERM interrupts what runs within. In another thread than the main one nothing changes: signals are not its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _came.clear()
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
