"""Attention kernels: query heads by KV head, and the query rows that a block holds.

Attention is dealt out to multiprocessors in waves, and some idle in the last one. Neither the waves themselves nor a smooth mean of them
improved left-out models or served runs (docs/adr/04): they are not in the formula.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from sim.specs.model import ModelSpec

BLOCK_ROWS = 128  # query rows of a block of FlashAttention 3


@lru_cache(maxsize=256)
def query_heads(model: ModelSpec, tp: int = 1) -> tuple[int, int]:
    """(KV heads, query heads to each of them) per GPU of the model's full-context attention; (0, 0) where it has none."""
    for group in model.groups:
        mixer = group.mixer
        if mixer.kind == "attention" and not mixer.window:
            return max(1, mixer.kv_heads // tp), max(1, mixer.heads // max(mixer.kv_heads, tp))
    return 0, 0


def mixed_fill(heads: tuple[int, int]) -> float:
    """Query rows that a decode's block holds beside prefill chunks, over those that it needs."""
    group = heads[1]
    return ceil(group / BLOCK_ROWS) * BLOCK_ROWS / group if group else 1.0
