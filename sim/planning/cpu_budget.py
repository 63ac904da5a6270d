"""Budget of a plan in CPU seconds: those of this process and of all that simulate for it, so that other load of a machine ends no plan."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable


class OutOfTime(Exception):
    """The budget of time is spent."""


class CpuBudget:
    """CPU seconds from now on, at most `most_s` (None: no limit). `processes` are the local ones that simulate beside this one."""

    def __init__(self, most_s: float | None = None) -> None:
        self._most_s = math.inf if most_s is None else most_s
        self._began_s = time.process_time()
        self._elsewhere_s = 0.0
        self.processes: Iterable[int] = ()
        self.held_back = 0.0  # share that is left for the end

    def add(self, seconds: float) -> None:
        """CPU seconds of a trial that another process has run."""
        self._elsewhere_s += seconds

    @property
    def spent_s(self) -> float:
        """CPU seconds so far. Of other machines' processes, and where the system counts no other process, those of ended trials alone."""
        return time.process_time() - self._began_s + max(self._elsewhere_s, sum(map(_cpu_s, self.processes)))

    def check(self) -> None:
        """Raises OutOfTime once the budget is spent, but for what is held back."""
        if self.spent_s > self._most_s * (1.0 - self.held_back):
            raise OutOfTime


def _cpu_s(process: int) -> float:
    """CPU seconds of a process of this machine; 0 where the system does not say, or it has ended."""
    try:
        return time.clock_gettime(~process << 3 | 2)  # CPUCLOCK_SCHED of Linux, as clock_getcpuclockid(3) makes it
    except (AttributeError, OSError):
        return 0.0
