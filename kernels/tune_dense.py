"""`python -m kernels.tune_dense -o DIR`: ways to walk a paged cache, beside the best library backend on contiguous KV, in one run.

Needs a CUDA device, python, numpy, torch and triton. Every variant of `dense_decode` meets its bound against float64 before it is timed
and after; all of a cell are replayed in turn. Prints each cell, then per variant the geometric mean of its time over the
library's by tokens in the batch, its worst and in how many cells it is no slower; `DIR/tune_dense.csv` holds every cell.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from kernels import alternatives, partials, pools, reference, timing
from kernels.bench_attention import HEADS_KV, HEADS_Q, D
from kernels.dense_decode import ERROR_BOUND, dense_decode

K, M = 2**10, 2**20
CELLS = [(8, M), (32, 128 * K), (1, M), (8, 128 * K), (2, 128 * K), (32, 32 * K), (8, 32 * K), (1, 512 * K), (4, 128 * K), (4, 2 * M),
         (1, 128 * K), (1, 2 * M), (1, 32 * K), (4, 32 * K), (32, M)]  # fmt: skip
COLUMNS = ("batch", "context", "variant", "median_s", "p10_s", "p90_s", "over_library", "error")

# Options of dense_decode; besides, `layout` of the cache (default: keys beside values), `order` of the page table (default: random),
# `each`: queue entries per program.
VARIANTS: dict[str, dict[str, object]] = {
    "fixed apart": {"layout": "apart"},
    "fixed": {},
    "sorted fixed": {"order": "sorted"},
    "sorted queue 1/8 by 8": {"order": "sorted", "queued": 1 / 8, "each": 8},
    "sorted queue 1/16 by 2": {"order": "sorted", "queued": 1 / 16, "each": 2},
    "sorted by head fixed": {"order": "sorted", "layout": "by head"},
    "sorted by head queue 1/16 by 2": {"order": "sorted", "layout": "by head", "queued": 1 / 16, "each": 2},
    "in turn fixed": {"order": "in turn"},
    "ascending fixed": {"order": "ascending"},
    "fixed 8 warps": {"num_warps": 8},
    "fixed 4 heads": {"heads": 4},
    "queue 1/32 by 2": {"queued": 1 / 32, "each": 2},
    "queue 1/16 by 2": {"queued": 1 / 16, "each": 2},
    "queue 1/16 by 4": {"queued": 1 / 16, "each": 4},
    "queue 1/8 by 4": {"queued": 1 / 8, "each": 4},
    "queue 1/8 by 8": {"queued": 1 / 8, "each": 8},
    "queue 1/8 by 16": {"queued": 1 / 8, "each": 16},
    "queue 1/8 by 8 whole tokens": {"queued": 1 / 8, "each": 8, "halves": False},
    "queue 1/8 by 8 apart": {"queued": 1 / 8, "each": 8, "layout": "apart"},
}


ALONE = ("layout", "order", "each")  # what is no option of dense_decode


def candidates(cell: pools.Cell, names: list[str]) -> tuple[dict[str, list[timing.Work]], dict[str, torch.Tensor]]:
    """Calls of every variant and of the library by name, and the exact answer of each variant's first call."""
    rows, sms = cell.batch * HEADS_KV, torch.cuda.get_device_properties(0).multi_processor_count
    work, out = partials.Workspace.allocate(rows, 16 * sms // rows + 65, HEADS_Q // HEADS_KV, D, "cuda"), torch.empty_like(cell.q[0])
    views = {"beside": cell.pages, "apart": cell.pages_apart, "by head": cell.pages_by_head}
    tables = {
        "random": cell.table,
        "sorted": cell.sorted_table(),
        "in turn": cell.ascending_table(True),
        "ascending": cell.ascending_table(),
    }
    exact: dict[tuple[str, str], torch.Tensor] = {}
    calls: dict[str, list[timing.Work]] = {}
    refs: dict[str, torch.Tensor] = {}
    for name in names:
        variant = VARIANTS[name]
        layout, order = str(variant.get("layout", "beside")), str(variant.get("order", "random"))
        caches, table = [views[layout](i) for i in range(cell.sets)], tables[order]
        options = {"queued": 0.0, **{key: value for key, value in variant.items() if key not in ALONE}}
        if "each" in variant:
            options = {"splits": max(1, sms // rows), "chunks": max(1, round(variant["each"] * sms / rows)), **options}  # type: ignore[operator]

        def call(i: int, caches=caches, table=table, options=options) -> torch.Tensor:
            return dense_decode(cell.q[i], *caches[i], cell.seq_lens, table, out=out, workspace=work, **options)

        calls[name] = [lambda i=i, call=call: call(i) for i in range(cell.sets)]
        # Sorted, the pages are those of the random table: so is the answer.
        same = "random" if order == "sorted" else order
        if (layout, same) not in exact:
            exact[layout, same] = pools.exact_dense(cell.q[0], *caches[0], tables[same])
        refs[name] = exact[layout, same]
    calls["library"] = [alternatives.sdpa(cell.q[i], *cell.contiguous(i))["sdpa_cudnn_gqa"] for i in range(cell.sets)]
    return calls, refs


def measure(cell: pools.Cell, names: list[str], repeats: int, log: Callable[[str], None]) -> list[dict[str, object]]:
    """One row per variant that met its bound before and after it was timed; the others are named in the log."""
    calls, refs = candidates(cell, names)
    for name in list(refs):
        try:
            error = reference.relative_error(calls[name][0](), refs[name])
        except (RuntimeError, ValueError) as failure:
            log(f"{name}: did not run: {str(failure).splitlines()[0][:120]}")
            del calls[name]
            continue
        if not error <= ERROR_BOUND[torch.bfloat16]:
            log(f"{name}: error {error:.1e}, not timed")
            del calls[name]
    times = timing.interleaved(calls, repeats, on_error=lambda name, error: log(f"{name}: not captured: {str(error)[:120]}"))
    library = timing.spread(times.pop("library"))["median_s"]
    at = {"batch": cell.batch, "context": cell.context}
    rows: list[dict[str, object]] = [{**at, "variant": "library", "median_s": library, "over_library": 1.0}]
    for name, values in times.items():
        found, error = timing.spread(values), reference.relative_error(calls[name][0](), refs[name])
        found.pop("repeats")
        if not error <= ERROR_BOUND[torch.bfloat16]:
            log(f"{name}: error {error:.1e} after timing, left out")
            continue
        rows.append({**at, "variant": name, **found, "over_library": found["median_s"] / library, "error": error})
    return rows


def summary(rows: list[dict[str, object]]) -> str:
    """Per variant: geometric means of its time over the library's by tokens in the batch, worst, cells no slower."""
    classes = [("below 64K", 0, 2**16), ("64K to 256K", 2**16, 2**18), ("from 256K", 2**18, 2**62)]
    lines = [f"{'variant':32}" + "".join(f"{name:>13}" for name, *_ in classes) + f"{'worst':>10}{'no slower':>12}"]
    for name in dict.fromkeys(str(r["variant"]) for r in rows if r["variant"] != "library"):
        mine = [(int(r["batch"]) * int(r["context"]), float(r["over_library"])) for r in rows if r["variant"] == name]  # type: ignore[call-overload,arg-type]
        text = f"{name:32}"
        for _, low, high in classes:
            logs = [math.log(ratio) for tokens, ratio in mine if low <= tokens < high]
            text += f"{math.exp(sum(logs) / len(logs)):13.4f}" if logs else f"{'':13}"
        lines.append(f"{text}{max(ratio for _, ratio in mine):10.4f}{sum(ratio <= 1 for _, ratio in mine):6} of {len(mine)}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.tune_dense", description=__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="where the table goes")
    parser.add_argument("--budget", type=float, default=140.0, metavar="SECONDS", help="start no cell after this (default 140)")
    parser.add_argument("--repeats", type=int, default=11, help="timed repeats of each variant (default 11)")
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="VARIANT", help="these variants")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    start = time.monotonic()
    torch.manual_seed(0)
    free = torch.cuda.mem_get_info()[0] - 4 * 2**30
    cells = [(b, c) for b, c in CELLS if b * c * HEADS_KV * D * 4 <= free]
    tokens = max(b * c for b, c in cells)
    flat = pools.pool(2 * tokens, HEADS_KV, D)
    rows: list[dict[str, object]] = []

    def log(text: str) -> None:
        print(f"[{time.monotonic() - start:6.1f}] {text}", flush=True)

    args.out.mkdir(parents=True, exist_ok=True)
    for batch, context in cells:
        if time.monotonic() - start > args.budget:
            log(f"B={batch} C={context}: not begun")
            continue
        cell = pools.cell(flat, batch, context, HEADS_Q, HEADS_KV, D)
        found = measure(cell, args.only, args.repeats, log)
        rows += found
        for r in found:
            log(f"B={batch:<3} C={context:<8} {r['variant']:32} {float(r['median_s']) * 1e6:10.2f} us {r['over_library']:.4f}")  # type: ignore[arg-type]
        with (args.out / "tune_dense.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    print(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
