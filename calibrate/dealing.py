"""The table of sim.dealing: batches of log-normal contexts dealt out, and averaged.

    python -m calibrate.dealing sim/data/dealing.npy

Every draw has exactly the mean and the standard deviation that it stands for, and begins anywhere in a block of keys. Takes minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrate import backend
from sim.dealing import BATCHES, BLOCK_KEYS, KV_HEADS, OCTAVES, SHARES, idle_share

Array = NDArray[np.float64]
# Sequences in the batches that a mean is of, of up to so many KV heads; and batches at the least and at the most.
SEQUENCES, ENOUGH, LEAST, MOST = 16384, 4, 32, 512


def batches(batch: int, share: float, rng: np.random.Generator, count: int = MOST) -> list[tuple[Array, float]]:
    """(contexts [batch] over their mean, keys by which they are all longer) of every draw: log-normal, with a standard deviation of `share`
    of the mean, or as much of it as so many can have. At most `count` draws.
    """
    return [
        (_apart(rng.standard_normal(batch), share), float(rng.uniform(-0.5, 0.5)) * BLOCK_KEYS)
        for _ in range(min(max(SEQUENCES // batch, LEAST), count))
    ]


def _apart(scores: Array, share: float) -> Array:
    apart = np.ones(len(scores))
    if len(scores) > 1 and share:
        low, high = 0.0, 30.0  # standard deviation of the logarithm
        for _ in range(40):
            middle = 0.5 * (low + high)
            apart = np.exp(middle * (scores - scores.max()))
            low, high = (middle, high) if apart.std() < share * apart.mean() else (low, middle)
    out: Array = apart / apart.mean()
    return out


def shares(draws: Sequence[tuple[Array, float]], kv_heads: int, mean: float, deal: Callable[..., float] = idle_share) -> Array:
    """`idle_share` of every draw."""
    found = []
    for apart, shift in draws:
        keys = np.floor(np.maximum(apart * mean + shift, 1.0)) + 1.0
        found.append(deal(np.ceil(keys / BLOCK_KEYS).astype(np.int64), kv_heads))
    return np.array(found)


def build() -> NDArray[np.float16]:
    """The table [KV heads, sequences, octave, share]."""
    deal = backend.numba().njit(error_model="numpy")(idle_share)
    out = np.empty((len(KV_HEADS), len(BATCHES), len(OCTAVES), len(SHARES)))
    for b, batch in enumerate(BATCHES):
        for s, share in enumerate(SHARES):
            draws = batches(batch, share, np.random.default_rng([batch, s]))
            for h, heads in enumerate(KV_HEADS):
                some = draws[: max(len(draws) * ENOUGH // max(heads, ENOUGH), LEAST)]  # more pieces differ less from batch to batch
                for o, octave in enumerate(OCTAVES):
                    out[h, b, o, s] = shares(some, heads, 2.0**octave, deal).mean()
    return out.astype(np.float16)


if __name__ == "__main__":
    np.save(Path(sys.argv[1]), build())
