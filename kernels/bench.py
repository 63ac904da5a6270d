"""`python -m kernels.bench -o DIR`: floors first, then every kernel beside the strongest alternatives present.

Needs a CUDA device, python, numpy, torch and triton; runs from a bare checkout. Cells are measured most informative first and the
table (`DIR/kernels_<gpu>.csv` and `.nc`) is rewritten after each, so a run that is cut short keeps what it has. Exit status 1
where a correctness gate failed.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from kernels import bench_attention, bench_gdn, floors, pools, results
from kernels.results import Row

K, M = 2**10, 2**20
SUITES = ("dense", "sparse", "gdn", "host", "step")
# (batch, context), most informative first: the cells of the bars, then the rest of the grid.
FIRST = [(8, M), (1, M), (8, 128 * K), (1, 32 * K), (1, 16 * K), (1, 8 * K), (1, 128 * K), (32, 128 * K)]
REST = [(1, 512 * K), (2, M), (4, M), (2, 128 * K), (4, 128 * K), (8, 8 * K), (8, 32 * K), (32, 8 * K), (32, 32 * K),
        (2, 32 * K), (4, 32 * K), (2, 8 * K), (4, 8 * K), (8, 512 * K), (32, M),
        (1, 2 * M), (8, 2 * M), (2, 2 * M), (4, 2 * M)]  # fmt: skip


def attention(suites: list[str], timer: bench_attention.Timer, quick: bool) -> Iterator[Callable[[], list[Row]]]:
    """Dense and sparse cells that fit this GPU, over one pool."""
    heads_q, heads, d = bench_attention.HEADS_Q, bench_attention.HEADS_KV, bench_attention.D
    free = torch.cuda.mem_get_info()[0] - 4 * 2**30
    grid = [(b, c) for b, c in FIRST + REST if b * c * heads * d * 4 <= free]
    if quick:
        grid = [(1, 8 * K), (2, 32 * K)]
    shared: list[torch.Tensor] = []

    def cell(batch: int, context: int) -> pools.Cell:
        if not shared:
            tokens = max(b * c for b, c in grid)
            shared.append(pools.pool(2 * tokens, heads, d))
        return pools.cell(*shared, batch, context, heads_q, heads, d)

    for batch, context in grid:
        if "dense" in suites:
            variants = (batch, context) in ((1, 128 * K), (8, 128 * K), (1, M), (8, M))
            yield lambda b=batch, c=context, v=variants: bench_attention.dense(cell(b, c), timer, v)
        if "sparse" in suites:
            yield lambda b=batch, c=context: bench_attention.sparse(cell(b, c), timer, 8)
            if (batch, context) in ((1, M), (8, M), (8, 128 * K)):
                yield lambda b=batch, c=context: bench_attention.sparse(cell(b, c), timer, 32, ("minmax_fp8",))
                yield lambda b=batch, c=context: bench_attention.sparse(cell(b, c), timer, 8, ("mean",))


def work(args: argparse.Namespace, rows: list[Row], log: Callable[[str], None]) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
    """Every piece of work in order, as (name, call giving rows)."""
    found = {r["op"]: r for r in rows}
    timer = bench_attention.Timer(float(found["read"]["rate"]), args.repeats, deadline=args.deadline, log=log)
    update = max(float(found["update"]["rate"]), float(found["copy"]["rate"]))
    if "gdn" in args.suites:
        for batch, heads in ((128, 48), (32, 48), (8, 48), (1, 48), (128, 32)):
            yield "gdn", lambda b=batch, h=heads: bench_gdn.cells(b, h, 16, timer, update)
    if "dense" in args.suites or "sparse" in args.suites:
        yield from (("attention", c) for c in attention(args.suites, timer, args.quick))
    link = float(found["h2d"]["rate"])
    if "host" in args.suites:
        from kernels import bench_host

        yield "host", lambda: bench_host.cells(timer, link, args.quick)
    if "step" in args.suites:
        from kernels import bench_step

        yield from (("step", c) for c in bench_step.cells(timer, link, args.quick, args.host_step))


def floor_rows(measured: list[floors.Row]) -> list[Row]:
    """The floors as rows of the table; a rate in flop/s or a time is said in the note."""
    out = []
    for f in measured:
        moved = float(f["bytes"])  # type: ignore[arg-type]
        note = "" if moved else f"{f['value']:.6g} {f['unit']}"
        out.append(results.row(
            "floor", str(f["name"]), "floor", median=f["median_s"], p10=f["p10_s"], p90=f["p90_s"], repeats=f["repeats"],
            moved=moved, rate=float(f["value"]) if moved else float("nan"), note=note,  # type: ignore[arg-type]
        ))  # fmt: skip
    return out


def failed(rows: list[Row]) -> list[Row]:
    """Rows of this package's own kernels that missed a correctness gate."""
    own = ("paged", "contiguous", "minmax", "mean", "f32", "bf16", "8, 16", "zero", "staged", "dense", "sparse", "tiered")
    return [r for r in rows if "gate" in str(r["note"]) and str(r["variant"]).startswith(own)] + [
        r for r in rows if str(r["note"]).startswith(("selection is not", "scores are off", "differs in bits"))
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="where the table goes")
    parser.add_argument("--budget", type=float, default=420.0, metavar="SECONDS", help="start no cell after this (default 420)")
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES), help="what to measure (default: all)")
    parser.add_argument("--repeats", type=int, default=15, help="timed repeats of each candidate (default 15)")
    parser.add_argument("--quick", action="store_true", help="a few small cells, to see that everything runs")
    parser.add_argument("--host-step", action="store_true", help="the step with 1M tokens of KV in host RAM (64 GiB pinned)")
    parser.add_argument("--stem", default=None, help="file name of the table (default kernels_<gpu>)")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    start = time.monotonic()
    args.deadline = start + args.budget
    torch.manual_seed(0)

    def log(text: str) -> None:
        print(f"[{time.monotonic() - start:6.1f}] {text}", file=sys.stderr, flush=True)

    attributes = results.provenance()
    attributes |= {
        "title": "decode kernels and their alternatives, measured",
        "protocol": "CUDA graph replay over input sets beyond the L2 cache, interleaved, CUDA events, medians",
        "shape": "28 query heads, 4 KV heads, head dimension 128, blocks of 128 tokens, 1 sink and 2 local blocks",
        "suites": " ".join(args.suites),
    }
    stem = args.stem or "kernels_" + attributes["gpu"].lower().replace("nvidia ", "").split(" ")[0]
    rows = floor_rows(floors.measure())
    for r in rows:
        log(f"floor {r['op']:12} {r['rate']:.4g} B/s  {r['median'] * 1e6:.2f} us {r['note']}")
    skipped = 0
    for name, call in work(args, rows, log):
        if time.monotonic() > args.deadline:
            skipped += 1
            continue
        try:
            rows += call()
        except torch.OutOfMemoryError as error:
            log(f"{name}: out of memory: {str(error)[:100]}")
            rows.append(results.row(name, name, "skipped", note="out of memory"))
        del call  # the last one of a suite holds its pools, and the next suite asks what memory is free
        gc.collect()
        torch.cuda.empty_cache()
        attributes["seconds"] = f"{time.monotonic() - start:.0f}"
        results.write(rows, attributes, args.out, stem)
    misses = failed(rows)
    for r in misses:
        log(f"GATE: {r['op']} {r['variant']} B={r['batch']} C={r['context']}: {r['note']}")
    print(f"{len(rows)} rows in {args.out}/{stem}.csv and .nc; {skipped} cells not started; {len(misses)} failed gates")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
