"""Time budgets and progress: how long a suite may take, and what it says on stderr while it does."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TextIO, TypeVar

T = TypeVar("T")


@dataclass
class Budget:
    """Seconds a suite may spend, counted from construction. `None` means no limit."""

    seconds: float | None
    clock: Callable[[], float] = time.monotonic
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.clock()

    @property
    def spent_s(self) -> float:
        return self.clock() - self.start

    @property
    def left_s(self) -> float:
        return float("inf") if self.seconds is None else self.seconds - self.spent_s

    def over(self, reserve_s: float = 0.0) -> bool:
        """True when less than `reserve_s` is left."""
        return self.left_s <= reserve_s


def paced(items: Sequence[T], budget: Budget, name: str, *, reserve_s: float = 0.0, stream: TextIO | None = None) -> Iterator[T]:
    """Yield items until the budget runs out, with a line of progress on stderr about every tenth of the way."""
    out = sys.stderr if stream is None else stream
    tenth, before = max(1, len(items) // 10), budget.spent_s
    for index, item in enumerate(items):
        if budget.over(reserve_s):
            print(f"{name}: budget spent after {index} of {len(items)} cells", file=out, flush=True)
            return
        yield item
        if (index + 1) % tenth == 0 or index + 1 == len(items):
            spent = budget.spent_s
            left = (spent - before) / (index + 1) * (len(items) - index - 1)
            left = left if budget.seconds is None else max(min(left, budget.seconds - spent), 0.0)
            print(f"{name}: {index + 1}/{len(items)} cells, {spent:.0f} s, about {left:.0f} s left", file=out, flush=True)
