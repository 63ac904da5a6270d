"""Cells of the kernel benchmark, most informative first: every kernel beside the strongest baselines present.

Needs a CUDA device. `python -m hw --suite kernels` measures and keeps them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch

from kernels import bench_cells, bench_inputs, results, roofline
from kernels.bench_cells import FAILED, Bench
from kernels.results import Row

K, M = 2**10, 2**20
HEADS_Q, HEADS_KV, D, KEY_HEADS = 28, 4, 128, 16
SUITES = ("dense", "sparse", "gdn", "host")
BASELINES = ("sdpa", "fa3", "engine")
# (batch, context), most informative first.
GRID = [(8, M), (1, M), (8, 128 * K), (1, 32 * K), (1, 16 * K), (1, 8 * K), (1, 128 * K), (32, 128 * K), (1, 512 * K), (2, M), (4, M),
        (2, 128 * K), (4, 128 * K), (8, 8 * K), (8, 32 * K), (32, 8 * K), (32, 32 * K), (2, 32 * K), (4, 32 * K), (2, 8 * K),
        (4, 8 * K), (8, 512 * K), (32, M), (1, 2 * M), (8, 2 * M), (2, 2 * M), (4, 2 * M)]  # fmt: skip
Cells = Iterator[tuple[str, Callable[[], list[Row]]]]


def attention(bench: Bench, suites: Sequence[str]) -> Cells:
    """Dense and sparse cells that fit this GPU, over one pool."""
    free = torch.cuda.mem_get_info()[0] - 4 * 2**30
    grid = [(b, c) for b, c in GRID if b * c * HEADS_KV * D * 4 <= free]
    shared: list[torch.Tensor] = []

    def cell(batch: int, context: int) -> bench_inputs.BenchCell:
        if not shared:
            shared.append(bench_inputs.pool(2 * max(b * c for b, c in grid), HEADS_KV, D))
        return bench_inputs.cell(*shared, batch, context, HEADS_Q, HEADS_KV, D)

    for batch, context in grid:
        if "dense" in suites:
            yield "dense", lambda b=batch, c=context: bench_cells.dense(bench, cell(b, c))
        if "sparse" in suites:
            yield "sparse", lambda b=batch, c=context: bench_cells.sparse(bench, cell(b, c), 8)
            if (batch, context) in ((1, M), (8, M), (8, 128 * K)):
                yield "sparse", lambda b=batch, c=context: bench_cells.sparse(bench, cell(b, c), 32, ("minmax_fp8",))


def work(
    limits: list[Row], suites: Sequence[str] = SUITES, *, repeats: int = 15, deadline: float = float("inf"),
    log: Callable[[str], None] = print,
) -> Cells:  # fmt: skip
    """Every cell in order, as (suite, call giving rows); `limits` are the rows of `roofline_rows`."""
    rate = {r["op"]: float(r["rate"]) for r in limits}
    bench = Bench(rate["read"], max(rate["update"], rate["copy"]), rate["h2d"], repeats, deadline, log)
    if "gdn" in suites:
        for batch, heads in ((128, 48), (32, 48), (8, 48), (1, 48), (128, 32)):
            yield "gdn", functools.partial(bench_cells.gdn, bench, batch, heads, KEY_HEADS)
    if "dense" in suites or "sparse" in suites:
        yield from attention(bench, suites)
    if "host" in suites:
        for k in (8, 32):
            yield "host", functools.partial(bench_cells.host, bench, M, k, HEADS_Q, HEADS_KV, D)


def roofline_rows(measured: list[roofline.Row]) -> list[Row]:
    """Roofline microbenchmarks as rows of suite `floor`; a rate in flop/s or a time is in the note."""
    out = []
    for f in measured:
        moved = float(f["bytes"])
        note = "" if moved else f"{f['value']:.6g} {f['unit']}"
        out.append(results.row(
            "floor", str(f["name"]), "floor", median=f["median_s"], p10=f["p10_s"], p90=f["p90_s"], repeats=f["repeats"],
            moved=moved, rate=float(f["value"]) if moved else float("nan"), note=note,
        ))  # fmt: skip
    return out


def failed(rows: list[Row]) -> list[Row]:
    """Rows of this package's kernels that missed a correctness gate or did not run."""
    return [r for r in rows if str(r["note"]).startswith((FAILED, "did not run")) and not str(r["variant"]).startswith(BASELINES)]
