"""What ends a command from outside, SIGTERM or the end of its time: an interruption with an exit code and words of its own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TERMINATED, TIMED_OUT = 143, 124  # as shells say of SIGTERM, and timeout(1) of what it ended
_came: list[tuple[int, str]] = []


def came() -> tuple[int, str] | None:
    """(exit code, what to say) of what has ended the command; None: nothing from outside."""
    return _came[-1] if _came else None


def note(code: int = TERMINATED, text: str = "terminated") -> None:
    """Something has come: for handlers that do more than `interrupt`."""
    _came.append((code, text))


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
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def within(seconds: float) -> None:
    """Interrupt what runs `as_interruption` after so many seconds. Raises AttributeError where the system has no such clock."""

    def over(*_: Any) -> None:
        note(TIMED_OUT, f"no answer within {seconds:g} s")
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def bounded(most_bytes: int) -> None:
    """Let this process, and each that it starts, take so much memory at most: beyond, it is a MemoryError. Raises ImportError where the
    system has no such limit.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
