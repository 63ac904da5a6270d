"""Attention of a prefill chunk comes in blocks of query rows, and multiprocessors take blocks in turns.

A block holds BLOCK_ROWS query rows of the query heads that share a KV head. Where a chunk has fewer blocks than the GPU has multiprocessors
the kernel splits the keys instead and keeps all of them busy. Where it has a few more, those few make a second turn in which most
multiprocessors idle: 512 tokens of 40 heads are 160 blocks, two turns of 132, in the time of 264.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from sim.specs.model import ModelSpec

BLOCK_ROWS = 128
# Of the GPUs whose engine iterations were learnt from (H100, H200); for others it stands for a number of that order.
MULTIPROCESSORS = 132


@lru_cache(maxsize=256)
def query_heads(model: ModelSpec, tp: int = 1) -> tuple[int, int]:
    """(KV heads, query heads to each of them) per GPU of the model's full-context attention; (0, 0) where it has none."""
    for group in model.groups:
        mixer = group.mixer
        if mixer.kind == "attention" and not mixer.window:
            return max(1, mixer.kv_heads // tp), max(1, mixer.heads // max(mixer.kv_heads, tp))
    return 0, 0


def idle_share(heads: tuple[int, int], tokens: float) -> float:
    """Idle of the last turn over the work of a chunk of so many query tokens (a number above 0); `heads` as `query_heads` gives them.

    Rows missing in a block that is not full are idle, too: so a longer chunk never has less work and idle together.
    """
    kv_heads, group = heads
    blocks = kv_heads * ceil(tokens * group / BLOCK_ROWS)
    if blocks <= MULTIPROCESSORS:
        return 0.0
    turns = -(-blocks // MULTIPROCESSORS)
    return turns * MULTIPROCESSORS * BLOCK_ROWS / (kv_heads * group * tokens) - 1.0
