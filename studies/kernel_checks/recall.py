"""Needles through the block selection: `python -m studies.kernel_checks.recall OUT.csv` trains the retriever and looks for needles with it.

A row says of one (context, haystack, distractors, block) how many of `trials` needles full attention answers (`dense`), how many lie in
one of the `blocks` best blocks (`within`), and, in blocks of 128 tokens, how many attention over these, one sink block and two local ones
answers (`found`). Haystacks are random tokens, or one paragraph of 256 tokens over and over; 16 needles lie in each, in candidate blocks.
e4m3 bounds and kernels of `kernels`.
"""

from __future__ import annotations

import csv
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from kernels.dense_decode import dense_decode
from kernels.gather_decode import gather_decode
from kernels.selector import select
from kernels.summaries import Summaries, allocate, build
from studies.kernel_checks import retriever

BLOCK, SINK, LOCAL = 128, 1, 2
CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072, 262144)
HAYSTACKS = {"random": 0, "paragraph": 256}
NEEDLES, DISTRACTORS = 16, (0, 4, 16)  # in a haystack; of each needle
BLOCKS = (128, 64, 32, 16)  # tokens
KS = (1, 2, 4, 8, 16, 32)
COLUMNS = ("context_tokens", "haystack", "distractors", "block_tokens", "candidates", "blocks", "within", "found", "dense", "trials")

Counts = Counter[tuple[object, ...]]  # times by what


def cell(model: retriever.Retriever, context: int, paragraph: int, distractors: int, trials: int, gen: torch.Generator) -> Counts:
    """Counts of a cell by (block, what, blocks): what is `rank`, `found`, `dense` or `trials`, the last three of blocks of 128 tokens."""
    counts: Counts = Counter()
    batch = max(1, min(-(-trials // NEEDLES), 2**21 // context))
    for _ in range(-(-trials // (batch * NEEDLES))):
        ends = {"first": SINK * BLOCK, "last": (LOCAL + 1) * BLOCK}
        tokens, keys, values, at = retriever.haystacks(batch, context, NEEDLES, distractors, gen, paragraph=paragraph, **ends)
        k, v = (x.to(torch.bfloat16).contiguous() for x in model.cache(tokens))
        queries = model.queries(keys).to(torch.bfloat16)
        lens = torch.full((batch,), context, dtype=torch.int32, device=k.device)
        for block in BLOCKS:
            empty = allocate(batch, 1, context // block, k.shape[3], kind="minmax_fp8", dtype=k.dtype, device=k.device, block=block)
            bounds = build(empty, k, lens)
            for i in range(NEEDLES):
                counts.update(one_needle(model, queries[:, i].contiguous(), k, v, lens, bounds, values[:, i], at[:, i]))
        counts[BLOCK, "trials", 0] += batch * NEEDLES
    return counts


def one_needle(
    model: retriever.Retriever, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lens: torch.Tensor, bounds: Summaries,
    value: torch.Tensor, at: torch.Tensor,
) -> Counts:  # fmt: skip
    """Counts of one needle in each haystack: q [B, G, D], k and v [B, 1, N, D], value and position [B]."""
    counts: Counts = Counter()
    block = bounds.block
    ends = {"sink_blocks": SINK * BLOCK // block, "local_blocks": LOCAL * BLOCK // block}
    scores = torch.full((q.shape[0], 1, bounds.blocks), -torch.inf, device=q.device)
    most = min(KS[-1], bounds.blocks)
    chosen = select(q, bounds, lens, most, scores=scores, **ends)
    mine = scores[:, 0].gather(1, at[:, None] // block)
    counts.update((block, "rank", r) for r in (1 + (scores[:, 0] > mine).sum(1)).tolist())
    if block != BLOCK:
        return counts

    def right(attended: torch.Tensor) -> int:
        return int((model.answer(attended.to(model.out.weight.dtype)) == value).sum())

    counts[block, "dense", 0] = right(dense_decode(q, k, v, lens))
    for budget in KS:
        best = chosen[..., : min(budget, most)].contiguous()
        counts[block, "found", budget] = right(gather_decode(q, k, v, lens, best, block=BLOCK, **ends))
    return counts


def rows(counts: Counts, context: int, haystack: str, distractors: int) -> Iterator[tuple[object, ...]]:
    """The rows of a cell, with as many blocks as are candidates at most."""
    trials = counts[BLOCK, "trials", 0]
    for block in BLOCKS:
        candidates = (context - (SINK + LOCAL) * BLOCK) // block
        for blocks in (2**i for i in range(candidates.bit_length())):
            within = sum(n for (of, what, rank), n in counts.items() if (of, what) == (block, "rank") and rank <= blocks)
            found = counts[BLOCK, "found", blocks] if block == BLOCK and blocks in KS else ""
            yield context, haystack, distractors, block, candidates, blocks, within, found, counts[BLOCK, "dense", 0], trials


def main(out: Path, trials: int = 1000, seconds: float = 150.0) -> None:
    """Train, look for needles in every cell that the time allows, write OUT."""
    began = time.perf_counter()
    model = retriever.train(seed=0)
    print(f"trained in {time.perf_counter() - began:.0f} s", flush=True)
    gen = torch.Generator("cuda").manual_seed(1)
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for context in CONTEXTS:
            for haystack, paragraph in HAYSTACKS.items():
                for distractors in DISTRACTORS:
                    if time.perf_counter() - began < seconds:
                        counts = cell(model, context, paragraph, distractors, trials, gen)
                        writer.writerows(rows(counts, context, haystack, distractors))
                        found = [counts[BLOCK, "found", k] for k in KS]
                        print(context, haystack, distractors, "dense", counts[BLOCK, "dense", 0], "found", found, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
