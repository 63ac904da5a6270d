"""Bandwidth of first and of further reads of KV that running sequences share.

    python -m studies.shared_kv

Reads docs/data/shared-kv.csv: decode attention of FlashAttention 3 on an H100 and an H200, 16 bits, sequences that share a prefix (`groups`
of them, dealt out in turns) beside sequences that share nothing (us a layer, medians of 7 replays of a CUDA graph, caches out of L2 when
they come again). Head size 576 is latent attention. A first read is priced by private sequences, a further one as the engines charge it.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from sim.cost.attention import LATENT_ROWS
from sim.engine.step_clock import charged
from studies.program import program

DATA = Path("docs/data/shared-kv.csv")
OF = ("gpu", "query_heads", "kv_heads", "head_dim")
SEQUENCES, TOKENS, LATENT = 8, 2048, 576  # fewer sequences or shared tokens: launching hides what a read takes
RATES = np.arange(1.5, 12.0, 0.02)  # TB/s


def bandwidths(rows: Sequence[dict[str, str]]) -> tuple[float, float, float]:
    """(TB/s of first reads, TB/s of further ones, rms error of the times that they give) of one head shape on one GPU."""
    heads, kv_heads, size = (int(rows[0][name]) for name in OF[1:])
    token_bytes = 2 * LATENT if size == LATENT else 4 * kv_heads * size
    blocks = -(-heads // LATENT_ROWS) if size == LATENT else kv_heads
    names = ("sequences", "groups", "shared_tokens", "own_tokens", "shared_us", "private_us")
    table = np.array([[float(row[name]) for name in names] for row in rows])
    n, _, shared, own, _, apart = table.T
    design = np.stack([np.ones_like(apart), n, n * (shared + own)], axis=1)
    token_us = float(np.linalg.lstsq(design / apart[:, None], np.ones_like(apart), rcond=None)[0][2])
    clear = table[(n >= SEQUENCES) & (shared >= TOKENS)]
    first = token_bytes / token_us * 1e-6

    def errors(rate: float) -> list[float]:
        saved, found = round(1000 * max(1.0 - first / rate, 0.0)), []
        for n, groups, shared, own, together, apart in clear.tolist():
            context, batch = int(n * (shared + own)), int(n)
            less = context - charged(context, batch, batch, int((n - groups) * shared), int(groups * shared), saved, blocks)
            found.append((apart - token_us * less) / together - 1.0)
        return found

    rms = [float(np.sqrt(np.mean(np.square(errors(rate))))) for rate in RATES.tolist()]
    best = int(np.argmin(rms))
    return first, float(RATES[best]), rms[best]


@program("python -m studies.shared_kv")
def main(argv: Sequence[str]) -> int:
    """Print the bandwidths by GPU and head shape."""
    with DATA.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for of, mine in groupby(rows, key=lambda row: tuple(row[name] for name in OF)):
        kept = list(mine)
        first, further, error = bandwidths(kept)
        gpu, heads, kv_heads, size = of
        shape = f"{gpu}, {heads} query heads, {kv_heads} of KV, size {size}"
        print(f"{shape}: first reads {first:.2f} TB/s, further ones {further:.2f}, rms {error:.1%} of {len(kept)} cells")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
