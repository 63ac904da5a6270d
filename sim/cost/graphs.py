"""CUDA-graph sizes: the numbers of tokens that engines capture graphs for, and the rows that a replayed graph computes for nobody."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np

# vLLM's sizes. An iteration runs the next size up; one beyond the largest is launched kernel by kernel, without padding.
CAPTURED = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
GRAPH_TOKENS = CAPTURED[-1]
_CAPTURED = np.array(CAPTURED, dtype=float)


def captured_padding(tokens: Any) -> Any:
    """Rows that the graph for `tokens` tokens (a number or an array) computes beyond them; 0 past the largest graph."""
    if isinstance(tokens, (float, int)):
        return 0.0 if tokens > GRAPH_TOKENS else CAPTURED[bisect_left(CAPTURED, tokens)] - tokens if tokens > 0 else 0.0
    several = np.asarray(tokens, dtype=float)
    size = _CAPTURED[np.minimum(np.searchsorted(_CAPTURED, several), _CAPTURED.size - 1)]
    return np.where((several > 0) & (several <= GRAPH_TOKENS), size - several, 0.0)
