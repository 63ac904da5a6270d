"""Admission: whether the front door takes a request at all. What it turns away is answered at once, with an error, and costs nothing.

max_queue        at most this many requests that have not produced their first token
token bucket     tokens (prompt + asked output) per second, with a burst, both over all replicas
too long         no request of more tokens (prompt + asked output) than max_model_len
TTFT goal        no request whose first token is predicted later than the goal: all prompt tokens ahead of it and its own, at the
                 rate at which full iterations of prefill go through
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sim.engine.interface import BUCKET, QUEUE, TOO_LONG, TTFT, Request
from sim.errors import UsageError


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits of admission; None: not limited. `bucket` is (tokens per second, burst tokens)."""

    max_queue: int | None = None
    bucket: tuple[float, float] | None = None
    ttft_s: float | None = None
    skip_too_long: bool = False  # without it, a request that is too long for the engine ends the run

    def __post_init__(self) -> None:
        if self.max_queue is not None and self.max_queue < 1:
            raise UsageError(f"max queue must be at least 1, got {self.max_queue}")
        if self.bucket is not None and not all(0.0 < value < math.inf for value in self.bucket):
            raise UsageError(f"a token bucket needs a rate and a burst above 0, got {self.bucket[0]:g}:{self.bucket[1]:g}")
        if self.ttft_s is not None and not 0.0 < self.ttft_s < math.inf:
            raise UsageError(f"a TTFT goal must be a finite time above 0, got {self.ttft_s:g} s")


class Admission:
    """Applies the limits, from what a front door knows: what it let in, and what has produced a first token."""

    def __init__(self, limits: AdmissionLimits, prefill_tokens_per_s: float = math.inf, max_model_len: float = math.inf) -> None:
        self._limits = limits
        self._longest = max_model_len if limits.skip_too_long else math.inf
        self._rate = prefill_tokens_per_s
        self._queued = 0
        self._prompt_tokens = 0
        self._level = limits.bucket[1] if limits.bucket else 0.0
        self._filled_s = 0.0

    def admits(self, request: Request, now_s: float) -> bool:
        """Whether `request` may be sent now; if so, it counts from this moment."""
        return not self.turns_away(request, now_s)

    def turns_away(self, request: Request, now_s: float) -> int:
        """The limit (TOO_LONG, QUEUE, TTFT or BUCKET, in that order) that `request` meets if sent now, or 0: it counts from now on."""
        limits = self._limits
        if request.prompt_tokens + request.output_tokens > self._longest:
            return TOO_LONG
        if limits.max_queue is not None and self._queued >= limits.max_queue:
            return QUEUE
        if limits.ttft_s is not None and self._prompt_tokens + request.prompt_tokens > limits.ttft_s * self._rate:
            return TTFT
        if limits.bucket is not None:
            rate, burst = limits.bucket
            self._level = min(burst, self._level + rate * (now_s - self._filled_s))
            self._filled_s = now_s
            requested = request.prompt_tokens + request.output_tokens
            if requested > self._level:
                return BUCKET
            self._level -= requested
        self._queued += 1
        self._prompt_tokens += request.prompt_tokens
        return 0

    def first_token(self, request: Request) -> None:
        """An admitted request produced its first token."""
        self._queued -= 1
        self._prompt_tokens -= request.prompt_tokens


NO_LIMITS = AdmissionLimits()


def batch_cap(step_time_s: Callable[[int], float], tau: float, most: int) -> int:
    """The largest batch up to `most` whose per-request efficiency t(1)/t(B) is at least tau: the batch before the knee.

    `step_time_s(batch)` does not fall with the batch. Raises UsageError unless 0 < tau < 1.
    """
    if not 0.0 < tau < 1.0:
        raise UsageError(f"the knee's efficiency must lie between 0 and 1, got {tau:g}")
    one_s = step_time_s(1)
    low, high = 1, most
    while low < high:
        mid = (low + high + 1) // 2
        if one_s / step_time_s(mid) >= tau:
            low = mid
        else:
            high = mid - 1
    return low
