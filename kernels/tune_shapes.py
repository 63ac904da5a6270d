"""`python -m kernels.tune_shapes -o DIR`: shapes of the programs of the block selection and of the gated delta rule, in one run.

Needs a CUDA device, python, numpy, torch and triton; half a minute. A shape of the selection is timed if it chooses what the default one
chooses; one of the gated delta rule if output and state meet their bounds against float64. All of a cell are replayed in turn.
Prints and leaves in `DIR/tune_shapes.csv` every time and its share of the floor: read, or read and write, of the same run.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from kernels import floors, reference, selector, summaries, timing
from kernels.gdn_decode import ERROR_BOUND, STATE_ERROR_BOUND, gdn_decode

HEADS_Q, HEADS_KV, D, K_BLOCKS = 28, 4, 128, 8
KEY_HEADS, HEADS_V = 16, 48
BEYOND_L2 = 200_000_000  # bytes of all input sets of a candidate
SELECT = {f"chunk {chunk}, {warps} warps": {"chunk": chunk, "num_warps": warps} for chunk in (32, 64, 128) for warps in (1, 2, 4, 8)} | {
    f"chunk 64, 2 warps, pick by {warps}": {"chunk": 64, "num_warps": 2, "pick_warps": warps} for warps in (1, 2, 8)
}
GDN = {f"{rows} rows, {warps} warps": {"tile_v": rows, "num_warps": warps} for rows in (8, 16, 32, 64, 128) for warps in (1, 2, 4, 8)}
COLUMNS = ("op", "batch", "size", "variant", "median_s", "p10_s", "p90_s", "of_floor")

Calls = dict[str, list[timing.Work]]


def selections(batch: int, context: int, device: str = "cuda") -> tuple[Calls, int, Callable[[str], str]]:
    """Calls by shape over random summaries, the bytes a call reads, and why a shape is not to be timed (empty: it is)."""
    blocks, rows = context // 128, batch * HEADS_KV
    moved = rows * blocks * (2 * D + 4)
    lens = torch.full((batch,), context, dtype=torch.int32, device=device)
    q = torch.randn(batch, HEADS_Q, D, device=device).bfloat16()
    made = []
    for _ in range(max(1, BEYOND_L2 // moved) if device == "cuda" else 1):
        s = summaries.allocate(batch, HEADS_KV, blocks, D, kind="minmax_fp8", dtype=q.dtype, device=device)
        s.data.copy_(torch.randn(s.data.shape, device=device).clamp(-4, 4))
        s.scale.fill_(1.0)
        made.append(s)
    work = selector.Workspace.allocate(rows, blocks, 16, device)

    def call(s: summaries.Summaries, options: dict[str, int]) -> torch.Tensor:
        return selector.select(q, s, lens, K_BLOCKS, workspace=work, **options)

    want = call(made[0], {})

    def refused(name: str) -> str:
        return "" if torch.equal(call(made[0], SELECT[name]), want) else "chooses other blocks"

    return {name: [lambda s=s, o=o: call(s, o) for s in made] for name, o in SELECT.items()}, moved, refused


def updates(batch: int, device: str = "cuda") -> tuple[Calls, int, Callable[[str], str]]:
    """The same of one step of the gated delta rule, whose bytes are read and written."""
    qkv = torch.randn(batch, (2 * KEY_HEADS + HEADS_V) * D, device=device).bfloat16()
    decay, beta = -0.1 * torch.rand(batch, HEADS_V, device=device), torch.rand(batch, HEADS_V, device=device)
    one = batch * HEADS_V * D * D * 4
    states = [torch.randn(batch, HEADS_V, D, D, device=device) for _ in range(max(1, BEYOND_L2 // one) if device == "cuda" else 1)]

    def call(state: torch.Tensor, options: dict[str, int]) -> torch.Tensor:
        return gdn_decode(qkv, decay, beta, state, key_heads=KEY_HEADS, **options)

    heads = [KEY_HEADS * D, KEY_HEADS * D, HEADS_V * D]
    few = [x.reshape(batch, -1, D)[:2] for x in qkv.split(heads, dim=1)]
    want, want_state = reference.gdn_decode(*few, decay[:2], beta[:2], states[0][:2], D**-0.5, True)

    def refused(name: str) -> str:
        state = states[0].clone()
        error = reference.relative_error(call(state, GDN[name])[:2], want), reference.relative_error(state[:2], want_state)
        met = error[0] <= ERROR_BOUND[qkv.dtype] and error[1] <= STATE_ERROR_BOUND[torch.float32]
        return "" if met else f"errors {error[0]:.1e}, {error[1]:.1e}"

    return {name: [lambda s=s, o=o: call(s, o) for s in states] for name, o in GDN.items()}, 2 * one, refused


def measure(
    op: str, batch: int, size: int, found: tuple[Calls, int, Callable[[str], str]], floor: float, repeats: int
) -> list[dict[str, object]]:
    """One row per shape that may be timed; what may not or cannot be is printed."""
    calls, moved, refused = found
    for name in list(calls):
        try:
            why = refused(name)
        except RuntimeError as error:
            why = str(error).splitlines()[0][:120]
        if why:
            print(f"{op} {name}: {why}", flush=True)
            del calls[name]
    rows: list[dict[str, object]] = []
    times = timing.interleaved(calls, repeats, on_error=lambda name, error: print(f"{op} {name}: not captured: {error}"))
    for name, values in times.items():
        stats = timing.spread(values)
        stats.pop("repeats")
        rows.append({"op": op, "batch": batch, "size": size, "variant": name, **stats, "of_floor": moved / floor / stats["median_s"]})
        print(f"{op:7} B={batch:<4} {size:<8} {name:32} {stats['median_s'] * 1e6:9.2f} us {rows[-1]['of_floor'] * 100:6.1f} %", flush=True)  # type: ignore[operator]
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.tune_shapes", description=__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="where the table goes")
    parser.add_argument("--repeats", type=int, default=11, help="timed repeats of each shape (default 11)")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    torch.manual_seed(0)
    known = {str(f["name"]): float(f["value"]) for f in floors.measure()}  # type: ignore[arg-type]
    update = max(known["update"], known["copy"])
    print(f"read {known['read'] / 1e9:.1f} GB/s, read and write {update / 1e9:.1f} GB/s")
    rows: list[dict[str, object]] = []
    for batch in (128, 8):
        rows += measure("gdn", batch, HEADS_V, updates(batch), update, args.repeats)
    for batch, context in ((8, 2**20), (1, 2**20), (8, 2**17)):
        rows += measure("select", batch, context, selections(batch, context), known["read"], args.repeats)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "tune_shapes.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
