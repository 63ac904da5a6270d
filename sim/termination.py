"""What ends a command from outside, SIGTERM or the end of its time: an interruption with an exit code and words of its own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TERMINATED, TIMED_OUT = 143, 124  # as shells say of SIGTERM, and timeout(1) of what it ended
_came: list[tuple[int, str]] = []


class Interruption(KeyboardInterrupt):
    """What a signal raises. Of a plain KeyboardInterrupt that passes a string that is being executed, as dataclasses are made, Python
    remembers that nobody handled it, and ends the process by SIGINT whatever its exit code.
    """


def came() -> tuple[int, str] | None:
    """(exit code, what to say) of what has ended the command; None: nothing from outside."""
    return _came[-1] if _came else None


def note(code: int = TERMINATED, text: str = "terminated") -> None:
    """Something has come: for handlers that do more than `interrupt`."""
    _came.append((code, text))


def interrupt(*_: Any) -> None:
    """Handler of SIGTERM: raises KeyboardInterrupt in the main thread."""
    note()
    raise Interruption


def _break(*_: Any) -> None:
    """Handler of SIGINT."""
    raise Interruption


@contextmanager
def as_interruption() -> Iterator[None]:
    """SIGTERM and Ctrl-C interrupt what runs within. In another thread than the main one nothing changes: signals are not its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _came.clear()
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, or somebody's own
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _break)
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def within(seconds: float) -> None:
    """Interrupt what runs `as_interruption` after so many seconds. Raises AttributeError where the system has no such clock."""

    def over(*_: Any) -> None:
        note(TIMED_OUT, f"no answer within {seconds:g} s")
        raise Interruption

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def bounded(most_bytes: int) -> None:
    """Let this process, and each that it starts, take so much memory at most: beyond, it is a MemoryError. Raises ImportError where the
    system has no such limit.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
