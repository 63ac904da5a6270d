"""Attention of a prefill chunk comes in blocks of query rows, and multiprocessors take blocks in turns.

A block holds BLOCK_ROWS query rows of the query heads that share a KV head. Where blocks are fewer than multiprocessors the kernel splits
the keys, into as many parts as give each multiprocessor a tenth more than its even share at most; then blocks times parts go in whole
turns, and where a few are left over most multiprocessors idle: 512 tokens of 40 heads are 160 blocks, two turns of 132, in the time of 264,
and 128 tokens of 28 heads are 28 blocks in five parts, two turns of a fifth each (docs/adr/0012).
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from sim.specs.model import ModelSpec

BLOCK_ROWS = 128
# Of the GPUs whose engine iterations were learnt from (H100, H200); for others it stands for a number of that order.
MULTIPROCESSORS = 132
MARGIN = 1.1  # over an even share, in parts as the kernel cuts them


@lru_cache(maxsize=256)
def query_heads(model: ModelSpec, tp: int = 1) -> tuple[int, int]:
    """(KV heads, query heads to each of them) per GPU of the model's full-context attention; (0, 0) where it has none."""
    for group in model.groups:
        mixer = group.mixer
        if mixer.kind == "attention" and not mixer.window:
            return max(1, mixer.kv_heads // tp), max(1, mixer.heads // max(mixer.kv_heads, tp))
    return 0, 0


def turns(heads: tuple[int, int], tokens: float) -> float:
    """How many times every multiprocessor goes over all keys with one block of a chunk of so many query tokens (a number above 0): a whole
    number, or a fraction where the keys are split.
    """
    kv_heads, group = heads
    blocks = kv_heads * ceil(tokens * group / BLOCK_ROWS)
    parts = ceil(MULTIPROCESSORS / (MARGIN * blocks)) if blocks else 1
    return ceil(blocks * parts / MULTIPROCESSORS) / parts


def idle_share(heads: tuple[int, int], tokens: float) -> float:
    """Idle of such a chunk's turns over its work, rows that blocks lack among it; `heads` as `query_heads` gives them."""
    kv_heads, group = heads
    rows = kv_heads * group * tokens
    return turns(heads, tokens) * MULTIPROCESSORS * BLOCK_ROWS / rows - 1.0 if rows else 0.0
