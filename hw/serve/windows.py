"""What the records say: the true-decode window, its throughput, per-request efficiency and the served knee. Pure.

A window opens when the last stream of a wave has its first token and closes when the first stream ends: between the two every
stream decodes and none prefills. Streams that failed void the whole batch: their neighbours ran at a lower load than stated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hw.serve.client import Served


@dataclass(frozen=True, slots=True)
class Window:
    """The span in which all `n` streams decode, and the tokens that arrived in it (after its opening, up to its close)."""

    n: int
    open_s: float
    close_s: float
    tokens: int

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / (self.close_s - self.open_s)

    @property
    def step_s(self) -> float:
        """Mean time per token of one stream."""
        return self.n / self.tokens_per_s


def void_reason(records: Sequence[Served]) -> str:
    """Why a batch must not be used; empty when every stream is complete."""
    bad = [r for r in records if not r.ok]
    if not records:
        return "no requests"
    return f"{len(bad)} of {len(records)} streams failed: {bad[0].error or 'incomplete'}" if bad else ""


def decode_window(records: Sequence[Served], min_tokens: int = 8) -> Window | str:
    """The window of one wave, or why there is none: a failed stream, or fewer than `min_tokens` per stream in it."""
    if reason := void_reason(records):
        return reason
    opening = max(r.token_s[0] for r in records)
    closing = min(r.token_s[-1] for r in records)
    tokens = sum(sum(opening < t <= closing for t in r.token_s) for r in records)
    if closing <= opening or tokens < min_tokens * len(records):
        return "the streams did not overlap in decode long enough: ask for more output tokens"
    return Window(len(records), opening, closing, tokens)


def efficiency(throughput_per_s: dict[int, float]) -> dict[int, float]:
    """eta(N) = throughput(N) / throughput(1) / N. Raises ValueError without N = 1."""
    if 1 not in throughput_per_s:
        raise ValueError("efficiency needs the throughput of a single stream")
    return {n: x / throughput_per_s[1] / n for n, x in sorted(throughput_per_s.items())}


def knee(eta: dict[int, float], tau: float = 0.65) -> tuple[float, bool]:
    """(first N with eta < tau on the ladder, False), or (largest N, True) when eta never falls that far: right-censored."""
    for n in sorted(eta):
        if eta[n] < tau:
            return float(n), False
    return float(max(eta)), True


def continuous_knee(eta: dict[int, float], tau: float = 0.65) -> tuple[float, bool]:
    """Where eta crosses tau, by interpolation linear in log2 N between the two rungs around it; censored as in `knee`."""
    rungs = sorted(eta)
    for low, high in itertools.pairwise(rungs):
        if eta[low] >= tau > eta[high]:
            share = (eta[low] - tau) / (eta[low] - eta[high])
            return 2 ** (math.log2(low) + share * (math.log2(high) - math.log2(low))), False
    return float(rungs[-1]), True
