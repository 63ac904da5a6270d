"""Parts of an iteration: the shares that pipeline stages or data-parallel ranks work on together.

Decodes are shared out evenly. A prefill chunk stays whole, cut only where it is longer than the token budget of a part, and goes to the
part with the fewest tokens. All parts are under way together, so an iteration takes what its heaviest part takes: ranks wait for one
another, and of pp micro-batches in pp stages each needs all stages in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.cost.batch import BatchShape
from sim.cost.graphs import captured_padding
from sim.specs.parallel import Parallel

Chunk = tuple[int, int, int]
"""Tokens of one request computed together: how many, the context at their end, and how many of them are sampled
(rows of logits).
"""
SUMS: tuple[str, ...] = (
    "decode_seqs",
    "decode_context",
    "decode_window",
    "decode_kept",
    "prefill_seqs",
    "prefill_tokens",
    "prefill_context",
    "prefill_pairs",
    "prefill_window_context",
    "prefill_window_pairs",
    "sampled",
    "head_pairs",
    "head_cached",
)


def cut(chunks: Sequence[Chunk], most: int) -> list[Chunk]:
    """Chunks of at most `most` tokens; the rows to sample are the last ones."""
    pieces: list[Chunk] = []
    for tokens, end, rows in chunks:
        start = end - tokens
        while tokens > most:
            start, tokens = start + most, tokens - most
            pieces.append((most, start, 0))
        pieces.append((tokens, end, rows))
    return pieces


def heaviest(chunks: Sequence[Chunk], batch: int, parts: int) -> tuple[int, list[Chunk], int]:
    """(decodes, chunks, tokens of all parts) of the part with the most tokens, `batch` decodes shared out evenly among `parts`."""
    decodes = -(-batch // parts)
    loads = [[decodes if part < batch - (decodes - 1) * parts else decodes - 1, part] for part in range(parts)] if batch else []
    loads = loads or [[0, part] for part in range(parts)]
    given: list[list[Chunk]] = [[] for _ in range(parts)]
    own = [load for load, _ in loads]
    for chunk in sorted(chunks, reverse=True):
        lightest = min(loads)
        lightest[0] += chunk[0]
        given[lightest[1]].append(chunk)
    part = max(loads)[1]
    return own[part], given[part], sum(load for load, _ in loads)


def other_rows(total: float, heaviest_rows: float, parallel: Parallel) -> float:
    """Rows of the other ranks' parts in the same micro-batch, of `total` in all parts."""
    return 0.0 if parallel.dp == 1 else max(total / parallel.pp - heaviest_rows, 0.0)


def share_of(shape: BatchShape, parallel: Parallel) -> BatchShape:
    """The heaviest part of an iteration whose sequences are alike (floats or arrays): a part has one sequence at least."""
    if parallel.parts == 1:
        return shape
    count: Any = shape.decode_seqs + shape.prefill_seqs
    share = np.maximum(1.0 / parallel.parts, 1.0 / np.maximum(count, 1.0))
    rows = shape.decode_seqs + shape.prefill_tokens
    part = shape._replace(**{name: getattr(shape, name) * share for name in SUMS})
    own = rows * share
    others = np.maximum(rows / parallel.pp - own, 0.0) if parallel.dp > 1 else 0.0
    return part._replace(padding=captured_padding(own), others=others)
