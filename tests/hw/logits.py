"""Agreement of two implementations from their full logits: what top-k log-probabilities are a lower bound of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hw.gates import Agreement, agreement


def from_logits(first: NDArray[np.floating], second: NDArray[np.floating], tokens: NDArray[np.integer]) -> Agreement:
    """Compare logits [steps, vocab], step i scoring `tokens[i]`."""
    a, b = (x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in (first.astype(np.float64), second.astype(np.float64)))
    kl = np.sum(np.exp(a) * (a - b), axis=1)
    at = np.arange(len(tokens))
    return agreement(np.argmax(a, 1) == np.argmax(b, 1), kl, a[at, tokens], b[at, tokens])
