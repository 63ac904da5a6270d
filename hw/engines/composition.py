"""Composition of one engine iteration, from the scheduler's own decision: (tokens computed, tokens already cached) per sequence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

FIELDS = {
    "decode_seqs": ("sequences computing exactly one token", "1"),
    "decode_context_tokens": ("keys those sequences attend to, summed, the new token included", "tokens"),
    "prefill_seqs": ("sequences computing two tokens or more", "1"),
    "prefill_tokens": ("tokens those sequences compute", "tokens"),
    "prefill_context_tokens": ("tokens those sequences had cached before, summed", "tokens"),
    "prefill_pairs": ("causal query-key pairs of those sequences", "1"),
    "prefill_max_chunk_tokens": ("longest chunk", "tokens"),
}


def composition(work: Iterable[tuple[int, int]]) -> dict[str, int]:
    """Counts of FIELDS from `(new_tokens, cached_tokens)` of every scheduled sequence.

    A sequence computing one token is a decode, whatever it computes it for: kernels see only the query length.
    """
    counts = dict.fromkeys(FIELDS, 0)
    for new, cached in work:
        if new < 1 or cached < 0:
            raise ValueError(f"a scheduled sequence computes >= 1 token on >= 0 cached, got {(new, cached)}")
        if new == 1:
            counts["decode_seqs"] += 1
            counts["decode_context_tokens"] += cached + 1
        else:
            counts["prefill_seqs"] += 1
            counts["prefill_tokens"] += new
            counts["prefill_context_tokens"] += cached
            counts["prefill_pairs"] += new * cached + new * (new + 1) // 2
            counts["prefill_max_chunk_tokens"] = max(counts["prefill_max_chunk_tokens"], new)
    return counts


def work_of(decision: Any) -> list[tuple[int, int]]:
    """(new, cached) tokens of every sequence of a vLLM SchedulerOutput."""
    scheduled = decision.num_scheduled_tokens
    work = [(scheduled[r.req_id], r.num_computed_tokens) for r in decision.scheduled_new_reqs]
    cached = decision.scheduled_cached_reqs
    return work + [(scheduled[i], c) for i, c in zip(cached.req_ids, cached.num_computed_tokens, strict=True)]
