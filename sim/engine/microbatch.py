"""An iteration cut into micro-batches, as llama.cpp computes it (n_ubatch)."""

from __future__ import annotations

Chunk = tuple[int, int, int]
"""Tokens of one request computed together: how many, the context at their end, and how many of them are sampled
(rows of logits).
"""


def micro_batches(contexts: list[int], chunks: list[Chunk], size: int) -> list[tuple[list[int], list[Chunk]]]:
    """The iteration cut into batches of at most `size` tokens: decodes first, then the chunks in order, cut where
    they must be.
    """
    parts: list[tuple[list[int], list[Chunk]]] = [(contexts[i : i + size], []) for i in range(0, len(contexts), size)]
    room = -len(contexts) % size
    for tokens, end, rows in chunks:
        left = tokens
        while left:
            if not room:
                parts.append(([], []))
                room = size
            part = min(left, room)
            left -= part
            room -= part
            # the rows to sample are the last ones
            below = min(rows, left)
            parts[-1][1].append((part, end - left, min(rows - below, part)))
            rows = below
    return parts


def equal_micro_batches(contexts: list[int], chunks: list[Chunk], size: int) -> list[tuple[list[int], list[Chunk]]]:
    """The iteration cut into batches in which every request has the same number of tokens, as llama.cpp cuts it for
    models with recurrent state.

    Each batch takes every request that has tokens left, the first `size` of them, and of each as many tokens as the
    shortest has left and as fit. So one decode beside prompts makes a batch of one token of everybody.
    """
    left = [(1, context + 1, 0) for context in contexts] + list(chunks)
    decodes = len(contexts)
    parts: list[tuple[list[int], list[Chunk]]] = []
    while left:
        taken, waiting = left[:size], left[size:]
        tokens = min(min(n for n, _, _ in taken), size // len(taken))
        part: list[Chunk] = []
        rest: list[Chunk] = []
        for n, end, rows in taken[min(decodes, size) :]:
            below = min(rows, n - tokens)
            part.append((tokens, end - (n - tokens), min(rows - below, tokens)))
            if n > tokens:
                rest.append((n - tokens, end, below))
        parts.append((contexts[:size], part))
        contexts, decodes = contexts[size:], max(decodes - size, 0)
        left = waiting[:decodes] + rest + waiting[decodes:]
    return parts
