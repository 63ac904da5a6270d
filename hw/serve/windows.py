"""The true-decode window of a wave, and its throughput. Pure.

A window opens when the last stream of a wave has its first token and closes when the first stream ends: between the two every
stream decodes and none prefills. Streams that failed void the whole batch: their neighbours ran at a lower load than stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hw.serve.client import ServedRequest


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


def void_reason(records: Sequence[ServedRequest]) -> str:
    """Why a batch must not be used; empty when every stream is complete."""
    bad = [r for r in records if not r.ok]
    if not records:
        return "no requests"
    return f"{len(bad)} of {len(records)} streams failed: {bad[0].error or 'incomplete'}" if bad else ""


def decode_window(records: Sequence[ServedRequest], min_tokens: int = 8) -> Window | str:
    """The window of one wave, or why there is none: a failed stream, or fewer than `min_tokens` per stream in it."""
    if reason := void_reason(records):
        return reason
    opening = max(r.token_s[0] for r in records)
    closing = min(r.token_s[-1] for r in records)
    tokens = sum(sum(opening < t <= closing for t in r.token_s) for r in records)
    if closing <= opening or tokens < min_tokens * len(records):
        return "the streams did not overlap in decode long enough: ask for more output tokens"
    return Window(len(records), opening, closing, tokens)
