"""A scheduler of vLLM's that also writes down what it decided and when the tokens came.

It decides nothing by itself. A line an iteration costs the engine some 50 us of host work, which its GPU does not wait for.
"""

from __future__ import annotations

import os
import time
from typing import Any

from hw.composition import work_of
from hw.serve.iterations import LOG_ENVIRONMENT, line

SCHEDULER = "hw.serve.recording.Recording"  # as `--scheduler-cls` takes it
FLUSH_EVERY = 100  # lines: a server that is killed loses no more


def recording(scheduler: type[Any]) -> type[Any]:
    """A class of `scheduler` that appends to the file of LOG_ENVIRONMENT a line for every iteration whose tokens came."""

    class Recording(scheduler):  # type: ignore[misc]
        """The scheduler, and its log."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._log = open(os.environ[LOG_ENVIRONMENT], "a", encoding="ascii", buffering=1 << 20)  # noqa: SIM115 (as long as the engine)
            self._lines = 0

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            decided_s = time.time()
            decision = super().schedule(*args, **kwargs)
            decision.simctl_times = (decided_s, time.time())
            return decision

        def update_from_output(self, decision: Any, *args: Any, **kwargs: Any) -> Any:
            collected_s = time.time()
            outputs = super().update_from_output(decision, *args, **kwargs)
            if decision.num_scheduled_tokens:
                self._log.write(line(*decision.simctl_times, collected_s, work_of(decision)))
                self._lines += 1
                if self._lines % FLUSH_EVERY == 0 or not self.has_requests():
                    self._log.flush()
            return outputs

        def shutdown(self) -> None:
            super().shutdown()
            self._log.close()

    return Recording


def __getattr__(name: str) -> Any:
    """`Recording`, vLLM's asynchronous scheduler recording: what `--scheduler-cls` names. Only an engine's process can make it."""
    if name != "Recording":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    return recording(AsyncScheduler)
