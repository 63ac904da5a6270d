"""Noise for a KV pool whose contexts are placed, not computed: random, and of the size that the model itself writes.

An engine's pool starts as zeros, which draw less power and can run faster than keys do. Noise far larger than what a model of small random
weights writes is no better: the mean of such values, the same for every token that attends to one context, drowns what tells the
tokens apart, and in a mixture of experts a whole chunk then routes to the same few.
"""

from __future__ import annotations

from typing import Any

WRITTEN_BLOCKS = 256  # looked at, from the first one that requests get: a prompt of some hundred tokens lies there
NOISE_TOKENS = 512


def keys_and_values(cache: Any, blocks: int) -> list[Any]:
    """Views of a layer's keys and values, or of its one latent cache; empty for what is no paged pool of `blocks`."""
    if not (hasattr(cache, "is_floating_point") and cache.is_floating_point() and cache.element_size() > 1):
        return []
    if blocks not in cache.shape[:2]:
        return [cache]
    pair = 1 - list(cache.shape[:2]).index(blocks)
    return list(cache.unbind(pair)) if cache.shape[pair] == 2 and cache.ndim >= 4 else [cache]


def fill_like_written(part: Any, blocks: int) -> float:
    """Fill keys or values with normal noise in place. Returns its standard deviation: of the entries written so far, 1 without any."""
    sd = 1.0
    if blocks in part.shape:
        axis = list(part.shape).index(blocks)
        seen = part.narrow(axis, 1, min(WRITTEN_BLOCKS, blocks - 1)).float()
        count = int((seen != 0).sum())
        sd = float(((seen * seen).sum() / count) ** 0.5) if count else 1.0
    part.normal_(0.0, sd)
    return sd
