"""Time of a further read of KV that running sequences share, as a share of a first read.

    python -m studies.shared_kv

Reads docs/data/shared-kv.csv: decode attention of FlashAttention 3 on an H100, in which all sequences share a prefix, beside sequences that
share nothing (us a layer, medians of 7 replays of a CUDA graph over eight layers' caches). A first read is priced by the latter.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from studies.program import program

DATA = Path("docs/data/shared-kv.csv")
SEQUENCES, TOKENS = 16, 2048  # fewer sequences or shared tokens: launching and waves of blocks hide what a read takes


def shares(rows: list[dict[str, float]]) -> np.ndarray:
    """Of each row of one head shape, the share of a first read that each further read of the prefix takes."""
    sequences, shared, own, together, apart = (
        np.array([row[name] for row in rows]) for name in ("sequences", "shared_tokens", "own_tokens", "shared_us", "private_us")
    )
    design = np.stack([np.ones_like(apart), sequences, sequences * (shared + own)], axis=1)
    token_us = np.linalg.lstsq(design / apart[:, None], np.ones_like(apart), rcond=None)[0][2]
    return np.asarray(1.0 + (together - apart) / (token_us * (sequences - 1.0) * shared))


@program("python -m studies.shared_kv")
def main(argv: Sequence[str]) -> int:
    """Print the shares by head shape, and of all."""
    with DATA.open(newline="") as file:
        rows = [{name: float(text) for name, text in row.items()} for row in csv.DictReader(file)]
    found: list[float] = []
    for shape in sorted({(row["query_heads"], row["kv_heads"]) for row in rows}):
        mine = [row for row in rows if (row["query_heads"], row["kv_heads"]) == shape]
        clear = np.array([row["sequences"] >= SEQUENCES and row["shared_tokens"] >= TOKENS for row in mine])
        kept = shares(mine)[clear]
        found += kept.tolist()
        print(f"{shape[0]:.0f} query heads, {shape[1]:.0f} of KV: {np.median(kept):.2f} ({kept.min():.2f}-{kept.max():.2f})")
    print(f"all: {np.median(found):.2f} ({min(found):.2f}-{max(found):.2f}), {len(found)} cells")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
