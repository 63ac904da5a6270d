"""Cells of the benchmark whose KV cache is in pinned host memory: one layer of a long context."""

from __future__ import annotations

import functools

import torch

from kernels import gather_decode, host_gather, model_ops, partials, reference, timing
from kernels.bench_attention import HEADS_KV, HEADS_Q, PAGE, D, Timer
from kernels.dense_decode import ERROR_BOUND
from kernels.results import Row, row

SETS = 12  # keep-sets in turn, so that none is found in the L2 cache


def cells(timer: Timer, link_bytes_per_s: float, quick: bool) -> list[Row]:
    """Zero-copy and staged gather of k blocks of one sequence, the dense cache over the link, and a copy beside compute."""
    context = 2**14 if quick else 2**20
    pages = context // PAGE
    host = [torch.empty(pages, HEADS_KV, PAGE, D, dtype=torch.bfloat16, pin_memory=True) for _ in range(2)]
    whole = torch.empty(host[0].shape, dtype=torch.bfloat16, device="cuda")
    for cache in host:
        cache.copy_(whole.normal_())
    rows: list[Row] = []
    for k in (8, 32):
        rows += _gathers(timer, link_bytes_per_s, host, pages, k)
    copy = [lambda: whole.copy_(host[0], non_blocking=True)]
    stats = timing.spread(timing.interleaved({"dense": copy}, 5)["dense"])
    rows.append(row(
        "host", "dense_over_link", "h2d", batch=1, context=context, dtype="bfloat16", median=2 * stats["median_s"],
        p10=2 * stats["p10_s"], p90=2 * stats["p90_s"], repeats=stats["repeats"], moved=2.0 * whole.numel() * 2,
        rate=whole.numel() * 2 / stats["median_s"], of_floor=whole.numel() * 2 / link_bytes_per_s / stats["median_s"],
        note="keys timed, values the same again",
    ))  # fmt: skip
    timer.log(f"host dense over the link {2 * stats['median_s'] * 1e3:.2f} ms")
    return rows


def _gathers(timer: Timer, link: float, host: list[torch.Tensor], pages: int, k: int) -> list[Row]:
    group = HEADS_Q // HEADS_KV
    q = torch.randn(1, HEADS_Q, D, device="cuda").bfloat16()
    lens = torch.tensor([pages * PAGE], dtype=torch.int32, device="cuda")
    # Device pages: one sink, two local, then k staged ones.
    device = [torch.full((3 + k, *host[0].shape[1:]), float("nan"), dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    table = -1 - torch.arange(pages, dtype=torch.int32, device="cuda")[None]
    for slot, page in enumerate((0, pages - 2, pages - 1)):
        table[0, page] = slot
        for mine, theirs in zip(device, host, strict=True):
            mine[slot].copy_(theirs[page])
    chosen = [torch.stack([torch.randperm(pages - 3)[:k] + 1 for _ in range(HEADS_KV)])[None].int().cuda() for _ in range(SETS)]
    work = partials.Workspace.allocate(HEADS_KV, gather_decode.parts_of(k, PAGE, 1, 2, 32), group, D, "cuda")
    out = torch.empty_like(q)

    def zero_copy(i: int, tile: int) -> torch.Tensor:
        return gather_decode.gather_decode(q, *device, lens, chosen[i], table, k_host=host[0], v_host=host[1], out=out, workspace=work,
                                           tile=tile, num_warps=2 if tile < 128 else 4)  # fmt: skip

    def stage(i: int, programs: int | None = None) -> None:
        host_gather.stage(*host, table, chosen[i], *device, 3, programs=programs)

    def staged(i: int) -> torch.Tensor:
        stage(i)
        return gather_decode.gather_decode(q, *device, lens, chosen[i], table, stage_page=3, out=out, workspace=work)

    keep = reference.kept_tokens(pages * PAGE, chosen[0][0].cpu(), PAGE, 1, 2).nonzero()
    exact = torch.empty(1, HEADS_Q, D, dtype=torch.float64)
    for h in range(HEADS_KV):
        at = keep[keep[:, 0] == h][:, 1]
        k_h, v_h = (x[at // PAGE, h, at % PAGE][None] for x in host)
        heads = slice(h * group, (h + 1) * group)
        exact[0, heads] = reference.attend(q[0, heads].cpu(), k_h, v_h, torch.ones(1, len(at), dtype=torch.bool), D**-0.5)
    calls = {
        "zero_copy_32": [functools.partial(zero_copy, i, 32) for i in range(SETS)],
        "zero_copy_64": [functools.partial(zero_copy, i, 64) for i in range(SETS)],
        "zero_copy_128": [functools.partial(zero_copy, i, 128) for i in range(SETS)],
        "staged": [functools.partial(staged, i) for i in range(SETS)],
    }
    moved = 2 * k * PAGE * D * HEADS_KV * 2
    before = {name: reference.relative_error(c[0]().cpu(), exact) for name, c in calls.items()}
    times = timing.interleaved(calls, timer.repeats, timer.graph_s, timer.deadline)
    rows = []
    for name, values in times.items():
        stats = timing.spread(values)
        after, bound = reference.relative_error(calls[name][0]().cpu(), exact), ERROR_BOUND[torch.bfloat16]
        rows.append(row(
            "host", "host_gather", name, batch=1, context=pages * PAGE, k_blocks=k, dtype="bfloat16", median=stats["median_s"],
            p10=stats["p10_s"], p90=stats["p90_s"], repeats=stats["repeats"], moved=float(moved),
            rate=moved / stats["median_s"], of_floor=moved / link / stats["median_s"], error_before=before[name],
            error_after=after, error_bound=bound, note="" if max(after, before[name]) <= bound else "failed its gate",
        ))  # fmt: skip
        timer.log(f"host gather k={k:<3} {name:14} {stats['median_s'] * 1e6:9.2f} us {moved / stats['median_s'] / 1e9:6.1f} GB/s")
    return rows + _overlap(timer, stage, moved, k)


def _overlap(timer: Timer, stage, moved: int, k: int) -> list[Row]:
    """The staged copy on a side stream beside a matrix-vector product that keeps the device memory busy."""
    x, w = torch.randn(1, 4096, device="cuda").bfloat16(), torch.randn(65536, 4096, device="cuda").bfloat16()
    y = torch.empty(1, 65536, dtype=torch.bfloat16, device="cuda")
    side = torch.cuda.Stream(priority=-1)  # its programs are placed as others end, not after the last of them

    def compute() -> None:
        model_ops.linear(x, w, y)

    def together(programs: int | None) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            stage(0, programs)
        compute()
        torch.cuda.current_stream().wait_stream(side)

    calls: dict[str, list[timing.Work]] = {"copy_alone": [lambda: stage(0)], "compute_alone": [compute]}
    for programs in (None, 16, 32, 64):
        name = "" if programs is None else f"_{programs}"
        calls[f"copy_beside_compute{name}"] = [functools.partial(together, programs)]
        if programs is not None:
            calls[f"copy_alone{name}"] = [functools.partial(stage, 0, programs)]
    rows = []
    for name, values in timing.interleaved(calls, timer.repeats, timer.graph_s, timer.deadline).items():
        stats = timing.spread(values)
        rows.append(row(
            "host", "overlap", name, batch=1, k_blocks=k, dtype="bfloat16", median=stats["median_s"], p10=stats["p10_s"],
            p90=stats["p90_s"], repeats=stats["repeats"], moved=float(0 if name == "compute_alone" else moved),
            note="compute reads 512 MiB of weights",
        ))  # fmt: skip
        timer.log(f"host overlap k={k:<3} {name:20} {stats['median_s'] * 1e6:9.2f} us")
    return rows
