"""CUDA-graph sizes: the numbers of tokens that engines capture graphs for, and the rows that a replayed graph computes for nobody."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

GRAPH_TOKENS = 512  # of vLLM's largest graph


@cache
def vllm_sizes(most: int) -> tuple[int, ...]:
    """Sizes that vLLM 0.32 captures up to `most` tokens."""
    return tuple(size for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if size <= most)


def sglang_sizes(most: int) -> tuple[int, ...]:
    """Decode batches that SGLang 0.5.15 captures: coarser than vLLM's from 512 on, 12 and `most` itself besides."""
    sizes = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, most, 32))
    return (*(size for size in sizes if size < most), *([most] if most else []))


CAPTURED = vllm_sizes(GRAPH_TOKENS)


def captured_padding(tokens: Any, sizes: Sequence[int] = CAPTURED) -> Any:
    """Rows that the graph for `tokens` tokens (a number or an array), the next of `sizes` up, computes beyond them; 0 past the largest."""
    if isinstance(tokens, (float, int)):
        return 0.0 if tokens > sizes[-1] else sizes[bisect_left(sizes, tokens)] - tokens if tokens > 0 else 0.0
    several, found = np.asarray(tokens, dtype=float), np.asarray(sizes, dtype=float)
    size = found[np.minimum(np.searchsorted(found, several), found.size - 1)]
    return np.where((several > 0) & (several <= found[-1]), size - several, 0.0)
