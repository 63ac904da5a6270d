"""Time budgets, progress on stderr, medians with quartiles, and endings that keep what was measured."""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from sim import termination

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


def paced(items: Sequence[T], budget: Budget, name: str, *, reserve_s: float = 0.0) -> Iterator[T]:
    """Yield items until the budget runs out, with a line of progress on stderr about every tenth of the way."""
    tenth, before = max(1, len(items) // 10), budget.spent_s
    for index, item in enumerate(items):
        if budget.over(reserve_s):
            print(f"{name}: budget spent after {index} of {len(items)} cells", file=sys.stderr, flush=True)
            return
        yield item
        if (index + 1) % tenth == 0 or index + 1 == len(items):
            spent = budget.spent_s
            left = (spent - before) / (index + 1) * (len(items) - index - 1)
            left = left if budget.seconds is None else max(min(left, budget.seconds - spent), 0.0)
            print(f"{name}: {index + 1}/{len(items)} cells, {spent:.0f} s, about {left:.0f} s left", file=sys.stderr, flush=True)


def summarize(samples: Sequence[float], prefix: str) -> dict[str, float | int]:
    """`{prefix}_median`, `_p25`, `_p75` (same unit as the samples) and `_n`. NaN for no samples."""
    quartiles = np.quantile(np.asarray(samples, dtype=float), (0.5, 0.25, 0.75)).tolist() if len(samples) else [float("nan")] * 3
    return dict(zip((f"{prefix}_{q}" for q in ("median", "p25", "p75")), quartiles, strict=True)) | {f"{prefix}_n": len(samples)}


def seconds_of(work: Callable[[], Any], device: str) -> float:
    """Seconds of running `work` once: by device events on CUDA, by the host clock elsewhere."""
    if device != "cuda":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    import torch

    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) * 1e-3


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection inside, one before."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on a termination signal inside the block, so that a stopped job still writes its data.

    Enter it again after starting an engine: some take the signal over.
    """
    previous = signal.signal(signal.SIGTERM, termination.interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
