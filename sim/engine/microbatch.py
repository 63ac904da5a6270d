"""An iteration cut into micro-batches, as llama.cpp computes it (n_ubatch)."""

from __future__ import annotations

from collections.abc import Sequence

from sim.cost.parts import Chunk


def micro_batches(contexts: list[int], chunks: list[Chunk], size: int) -> list[tuple[list[int], list[Chunk]]]:
    """The iteration cut into batches of at most `size` tokens: decodes first, then the chunks in order, cut where they must be."""
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


def equal_micro_batches(
    contexts: list[int], chunks: list[Chunk], size: int, places: Sequence[int] = ()
) -> list[tuple[list[int], list[Chunk]]]:
    """The iteration cut into batches in which every request has the same number of tokens, as llama.cpp cuts it where requests keep a state
    or a KV stream each.

    Each batch takes requests that have tokens left, in order and `size` at most, and of each as many tokens as the shortest has left and as
    fit. So one decode beside prompts makes a batch of one token of everybody. With `places` (slot numbers of the decodes, then of the
    chunks) a batch holds slots with consecutive numbers only: streams lie one after the other, and a gap ends the batch.
    """
    left = [(1, context + 1, 0) for context in contexts] + list(chunks)
    at = list(places) or list(range(len(left)))
    decodes = len(contexts)
    parts: list[tuple[list[int], list[Chunk]]] = []
    while left:
        run: list[int] = []
        for index, place in enumerate(at):
            if len(run) == size:
                break
            if not run or not places or place == at[run[-1]] + 1:
                run.append(index)
        tokens = min(min(left[index][0] for index in run), size // len(run))
        taken: list[int] = []
        part: list[Chunk] = []
        done: set[int] = set()
        for index in run:
            n, end, rows = left[index]
            if index < decodes:
                taken.append(end - 1)
            else:
                below = min(rows, n - tokens)
                part.append((tokens, end - (n - tokens), min(rows - below, tokens)))
                left[index] = (n - tokens, end, below)
            if n == tokens:
                done.add(index)
        parts.append((taken, part))
        left = [each for index, each in enumerate(left) if index not in done]
        at = [each for index, each in enumerate(at) if index not in done]
        decodes -= len(taken)
    return parts
