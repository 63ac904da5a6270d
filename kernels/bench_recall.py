"""Needles through the block selection: `python -m kernels.bench_recall OUT.csv` trains the retriever and looks for needles with it.

One row for each (context, distractors, what): `found dense` and `found k` are needles answered right by full attention and by k selected
blocks, one sink and two local ones; `rank r` are needles whose block has the r-th best score of the candidates. Counts of `trials` each.
Blocks of 128 tokens, e4m3 bounds, the kernels of this package; needles lie in candidate blocks.
"""

from __future__ import annotations

import csv
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from kernels import retriever
from kernels.dense_decode import dense_decode
from kernels.gather_decode import gather_decode
from kernels.selector import select
from kernels.summaries import Summaries, allocate, build

BLOCK, SINK, LOCAL = 128, 1, 2
CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072, 262144)
NEEDLES, DISTRACTORS = 16, (0, 4, 16)  # in a haystack; of each needle
KS = (1, 2, 4, 8, 16, 32)
COLUMNS = ("context_tokens", "distractors", "what", "count", "trials")


def needles(
    model: retriever.Retriever, context: int, distractors: int, trials: int, gen: torch.Generator, dtype: torch.dtype = torch.bfloat16
) -> Counter[str]:
    """Counts of one cell, by what was found."""
    counts: Counter[str] = Counter()
    batch = max(1, min(-(-trials // NEEDLES), 2**21 // context))
    for _ in range(-(-trials // (batch * NEEDLES))):
        ends = {"first": SINK * BLOCK, "last": (LOCAL + 1) * BLOCK}
        tokens, keys, values, at = retriever.haystacks(batch, context, NEEDLES, distractors, gen, **ends)
        k, v = (x.to(dtype).contiguous() for x in model.cache(tokens))
        queries = model.queries(keys).to(dtype)
        lens = torch.full((batch,), context, dtype=torch.int32, device=k.device)
        empty = allocate(batch, 1, context // BLOCK, k.shape[3], kind="minmax_fp8", dtype=dtype, device=k.device, block=BLOCK)
        bounds = build(empty, k, lens)
        for i in range(NEEDLES):
            counts.update(one_needle(model, queries[:, i].contiguous(), k, v, lens, bounds, values[:, i], at[:, i]))
        counts["trials"] += batch * NEEDLES
    return counts


def one_needle(
    model: retriever.Retriever, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lens: torch.Tensor, bounds: Summaries,
    value: torch.Tensor, at: torch.Tensor,
) -> Counter[str]:  # fmt: skip
    """Counts of one needle in each haystack: q [B, G, D], k and v [B, 1, N, D], value and position [B]."""
    counts: Counter[str] = Counter()

    def right(attended: torch.Tensor) -> int:
        return int((model.answer(attended.to(model.out.weight.dtype)) == value).sum())

    counts["found dense"] = right(dense_decode(q, k, v, lens))
    scores = torch.full((q.shape[0], 1, bounds.blocks), -torch.inf, device=q.device)
    most = min(KS[-1], bounds.blocks)
    chosen = select(q, bounds, lens, most, sink_blocks=SINK, local_blocks=LOCAL, scores=scores)
    mine = scores[:, 0].gather(1, at[:, None] // BLOCK)
    counts.update(f"rank {r}" for r in (1 + (scores[:, 0] > mine).sum(1)).tolist())
    for budget in KS:
        best = chosen[..., : min(budget, most)].contiguous()
        counts[f"found {budget}"] = right(gather_decode(q, k, v, lens, best, block=BLOCK, sink_blocks=SINK, local_blocks=LOCAL))
    return counts


def main(out: Path, trials: int = 1000, seconds: float = 240.0) -> None:
    """Train, look for needles in every cell that the time allows, write OUT."""
    began = time.perf_counter()
    model = retriever.train(seed=0)
    print(f"trained in {time.perf_counter() - began:.0f} s", flush=True)
    gen = torch.Generator("cuda").manual_seed(1)
    rows = []
    for context in CONTEXTS:
        for distractors in DISTRACTORS:
            if time.perf_counter() - began > seconds:
                break
            counts = needles(model, context, distractors, trials, gen)
            rows += [(context, distractors, what, counts[what], counts["trials"]) for what in sorted(counts) if what != "trials"]
            found = {what: n for what, n in counts.items() if what.startswith("found")}
            print(context, distractors, found, flush=True)
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
