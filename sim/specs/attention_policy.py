"""Attention policies: which past tokens a decode step reads in the full-context layers, and where the KV cache lives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sim.errors import UsageError

Kind = Literal["dense", "sink-window", "pages", "blocks"]
Placement = Literal["hbm", "host"]

SINK_TOKENS = 128
LOCAL_TOKENS = 512
WINDOW_TOKENS = 4096
BLOCK_TOKENS = 128
PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class AttentionPolicy:
    """Attention policy: the tokens that one query attends to.

        dense        every past token
        sink-window  the first `sink` tokens and the last `local` ones; nothing in between can be retrieved
        pages        sink, local window, and the best `k` x (128 / 16) pages of 16 tokens, found from per-page summaries
        blocks       sink, local window, and the best `k` blocks of 128 tokens, found from per-block summaries

    `placement` says where the KV cache lives; with "host", what a step reads crosses the host link. `overlap` is the share of the
    bytes crossing it that may hide behind compute: 1 for dense streaming (the next layer's KV needs no query), 0 for selection (it does).
    """

    kind: Kind = "dense"
    placement: Placement = "hbm"
    k: int = 0
    sink: int = 0
    local: int = 0
    unit_tokens: int = 0
    overlap: float = 0.0

    def __post_init__(self) -> None:
        if self.kind in ("pages", "blocks") and self.k < 1:
            raise UsageError(f"k must be at least 1 for {self.kind} selection, got {self.k}")
        if min(self.sink, self.local) < 0:
            raise UsageError("sink and local window must not be negative")

    @property
    def selects(self) -> bool:
        return self.kind in ("pages", "blocks")

    @property
    def on_host(self) -> bool:
        return self.placement == "host"

    @property
    def plain(self) -> bool:
        """Dense attention in HBM: an iteration's price hangs on sums of contexts alone."""
        return self.kind == "dense" and not self.on_host

    @property
    def units(self) -> int:
        """Summarised units (pages or blocks) chosen per layer and sequence."""
        return self.k * BLOCK_TOKENS // self.unit_tokens if self.selects else 0

    @property
    def keep_tokens(self) -> float:
        """Most tokens read per sequence and full-context layer (infinite when dense)."""
        if self.kind == "dense":
            return float("inf")
        return float(self.sink + self.local + self.units * self.unit_tokens)

    def kept(self, context: Any, xp: Any) -> Any:
        """Tokens read of a sequence with `context` cached tokens; `xp` supplies minimum."""
        return context if self.kind == "dense" else xp.minimum(context, self.keep_tokens)

    @property
    def label(self) -> str:
        where = "host RAM" if self.placement == "host" else "HBM"
        what = {
            "dense": "dense",
            "sink-window": f"first {self.sink} + last {self.local}",
            "pages": f"top {self.units} pages of {PAGE_TOKENS}",
            "blocks": f"top {self.k} blocks of {BLOCK_TOKENS}",
        }[self.kind]
        return f"{what} (KV in {where})"


def dense(placement: Placement = "hbm") -> AttentionPolicy:
    return AttentionPolicy("dense", placement, overlap=1.0)


def sink_window(placement: Placement = "hbm", window: int = WINDOW_TOKENS) -> AttentionPolicy:
    # the kept tokens are known without a query, so their transfer may be prefetched
    return AttentionPolicy("sink-window", placement, sink=SINK_TOKENS, local=window, overlap=1.0)


def pages(k: int, placement: Placement = "hbm") -> AttentionPolicy:
    return AttentionPolicy("pages", placement, k, SINK_TOKENS, LOCAL_TOKENS, PAGE_TOKENS)


def blocks(k: int, placement: Placement = "hbm") -> AttentionPolicy:
    return AttentionPolicy("blocks", placement, k, SINK_TOKENS, LOCAL_TOKENS, BLOCK_TOKENS)
