"""An event loop whose clock jumps to the next timer once no socket has anything to say.

Client and server run in it over real loopback sockets, so every byte takes the real path, while a delay of ten seconds takes none
and lands exactly where it was asked for: measured times can be compared with equality.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Jumping(selectors.DefaultSelector):
    """Waits a real millisecond for sockets; if they stay silent, moves the loop's clock instead of waiting on."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        ready = super().select(0.001 if timeout is not None else 5.0)
        if not ready:
            if timeout is None:
                raise RuntimeError("nothing left to wait for: the program under test hangs")
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_virtual(program: Coroutine[Any, Any, Any]) -> Any:
    """Run to completion on a virtual clock that starts at 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(program)
