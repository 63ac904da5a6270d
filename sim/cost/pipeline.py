"""Pipeline stages and data-parallel ranks: the shares of an iteration that they work on together.

Decodes are shared out evenly. A prefill chunk stays whole, cut only where it is longer than the token budget of a part, and goes to the
part with the fewest tokens. All parts are under way together, so an iteration takes what its heaviest part takes: ranks wait for one
another, and of pp micro-batches in pp stages each needs all stages in turn.
"""

from __future__ import annotations

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
