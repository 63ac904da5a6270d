"""Benchmark cells: kernels and baselines over the same inputs, gated against float64 before and after timing.

Suites: dense decode attention; block selection with gather decode; gated delta rule; KV in host memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels import baselines, gather_decode, host_gather, partials, reference, selector, summaries, timing
from kernels.bench_inputs import (
    BEYOND_L2,
    PAGE,
    BenchCell,
    exact_attention,
    random_blocks,
    stream_contiguous,
    stream_kept,
    stream_pages,
)  # fmt: skip
from kernels.dense_decode import ERROR_BOUND, dense_decode
from kernels.gdn_decode import ERROR_BOUND as GDN_BOUND
from kernels.gdn_decode import STATE_ERROR_BOUND, gdn_decode
from kernels.results import Row, row

BF16 = torch.bfloat16
FAILED = "failed its gate"


@dataclass(frozen=True)
class Bench:
    """Settings of measuring cells: roofline bandwidths in bytes/s of reading, of updating in place, of the host link."""

    read: float
    update: float
    link: float
    repeats: int = 15
    deadline: float = float("inf")
    log: Callable[[str], None] = print
    device: str = "cuda"


@dataclass(frozen=True)
class Candidate:
    """A list of calls, one per input set; bytes a call moves; relative error of the first call, at most `bound` (None: not gated)."""

    calls: list[timing.Work]
    moved: int
    error: Callable[[], float] | None
    bound: float = ERROR_BOUND[BF16]
    gate_after: bool = True


def measured(bench: Bench, suite: str, op: str, candidates: dict[str, Candidate], roofline: float, **labels: object) -> list[Row]:
    """One row per candidate: gate, time all in turn, gate again. A candidate that fails or cannot run has a note and no time."""
    rows: list[Row] = []
    passed: dict[str, Candidate] = {}
    before: dict[str, float] = {}

    def lost(name: str, note: str, **found: object) -> None:
        rows.append(row(suite, op, name, **{**labels, **found, "note": note[:140]}))

    for name, c in candidates.items():
        try:
            before[name] = float("nan") if c.error is None else c.error()
        except Exception as failure:  # whatever a baseline of another package raises
            lost(name, f"did not run: {str(failure).splitlines()[0]}")
            continue
        if c.error is None or before[name] <= c.bound:
            passed[name] = c
        else:
            lost(name, f"{FAILED}: not timed", error_before=before[name], error_bound=c.bound)
    calls = {name: c.calls for name, c in passed.items()}
    times = timing.interleaved(
        calls, bench.repeats, deadline=bench.deadline, on_error=lambda name, e: lost(name, f"not captured: {str(e).splitlines()[0]}")
    )
    for name, values in times.items():
        c, stats = passed[name], timing.percentiles(values)
        after = c.error() if c.error and c.gate_after else float("nan")
        result = {
            "median": stats["median_s"], "p10": stats["p10_s"], "p90": stats["p90_s"], "repeats": stats["repeats"],
            "moved": float(c.moved), "rate": c.moved / stats["median_s"], "of_floor": c.moved / roofline / stats["median_s"],
        }  # fmt: skip
        if c.error:
            result |= {"error_before": before[name], "error_after": after, "error_bound": c.bound}
        note = f"{FAILED} after timing" if c.error and c.gate_after and not after <= c.bound else labels.get("note", "")
        rows.append(row(suite, op, name, **{**labels, **result, "note": note}))
        bench.log(f"{op:14} {name:24} B={labels['batch']:<3} C={labels.get('context', ''):<8} {stats['median_s'] * 1e6:10.2f} us "
                  f"{result['of_floor'] * 100:6.1f} %")  # fmt: skip
    return rows


def dense(bench: Bench, cell: BenchCell) -> list[Row]:
    """Dense decode: pages in random order (a churned allocator), in order (a fresh one), contiguous KV; SDPA, FlashAttention 3."""
    heads_q, heads = cell.q[0].shape[1], cell.heads_kv
    work = partials.Workspace.allocate(cell.batch * heads, 256, heads_q // heads, cell.d, bench.device)
    out, sets, in_order = torch.empty_like(cell.q[0]), range(cell.sets), cell.table_in_order()
    found: dict[str, Candidate] = {}

    def add(name: str, calls: list[timing.Work], exact: torch.Tensor) -> None:
        found[name] = Candidate(calls, cell.kv_bytes, lambda: reference.relative_error(calls[0](), exact))

    def ours(i: int, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor | None) -> timing.Work:
        return lambda: dense_decode(cell.q[i], k, v, cell.seq_lens, table, out=out, workspace=work)

    for name, table in (("paged", cell.table), ("paged_in_order", in_order)):
        add(name, [ours(i, *cell.pages(i), table) for i in sets], exact_attention(cell.q[0], stream_pages(*cell.pages(0), table)))
    exact = exact_attention(cell.q[0], stream_contiguous(*cell.contiguous(0)))
    add("contiguous", [ours(i, *cell.contiguous(i), None) for i in sets], exact)
    per_set = [baselines.sdpa(cell.q[i], *cell.contiguous(i)) for i in sets]
    for name in per_set[0]:
        add(name, [calls[name] for calls in per_set], exact)
    per_set = [baselines.fa3_paged(cell.q[i], *cell.token_major(i), cell.table, cell.seq_lens) for i in sets]
    if per_set[0]:
        k, v = (x.transpose(1, 2) for x in cell.token_major(0))
        exact = exact_attention(cell.q[0], stream_pages(k, v, cell.table))
        for name in per_set[0]:
            add(name, [calls[name] for calls in per_set], exact)
    return measured(bench, "dense", "dense_decode", found, bench.read, batch=cell.batch, context=cell.context, dtype="bfloat16")


def sparse(bench: Bench, cell: BenchCell, k: int, kinds: tuple[str, ...] = ("minmax_fp8", "minmax")) -> list[Row]:
    """Sparse decode with k selected blocks: selection and gather together, then each by itself."""
    rows: list[Row] = []
    heads, blocks, n_rows = cell.heads_kv, cell.context // PAGE, cell.batch * cell.heads_kv
    group = cell.q[0].shape[1] // heads
    parts = partials.Workspace.allocate(n_rows, gather_decode.parts_of(k, PAGE, 1, 2, 32), group, cell.d, bench.device)
    scratch = selector.SelectorWorkspace.allocate(n_rows, blocks, 64, bench.device)
    chosen = torch.empty(cell.batch, heads, k, dtype=torch.int32, device=bench.device)
    out, sets = torch.empty_like(cell.q[0]), range(cell.sets)
    kept = min(blocks, k + 3) * PAGE * 2 * cell.d * 2 * n_rows
    for kind in kinds:
        made = []
        for i in sets:
            empty = summaries.allocate(cell.batch, heads, blocks, cell.d, kind=kind, dtype=BF16, device=bench.device)
            made.append(summaries.build(empty, cell.pages(i)[0], cell.seq_lens, cell.table))
        scan = blocks * n_rows * made[0].bytes_per_block
        labels = {"batch": cell.batch, "context": cell.context, "dtype": "bfloat16", "k_blocks": k}

        def select(i: int, made: list[summaries.Summaries] = made) -> torch.Tensor:
            return selector.select(cell.q[i], made[i], cell.seq_lens, k, out=chosen, workspace=scratch)

        def gather(i: int, blocks_of: torch.Tensor = chosen) -> torch.Tensor:
            return gather_decode.gather_decode(cell.q[i], *cell.pages(i), cell.seq_lens, blocks_of, cell.table, out=out, workspace=parts)

        def both(i: int, select: Callable[[int], torch.Tensor] = select) -> torch.Tensor:
            select(i)
            return gather(i)

        note = wrong_selection(cell, made[0], k, select(0))
        if note:
            rows.append(row("sparse", "select", kind, note=f"{FAILED}: {note}", **labels))
            continue
        exact = exact_attention(cell.q[0], stream_kept(*cell.pages(0), cell.table, chosen))
        calls: list[timing.Work] = [functools.partial(both, i) for i in sets]
        error = functools.partial(lambda call, exact: reference.relative_error(call(), exact), calls[0], exact)
        rows += measured(bench, "sparse", "select_gather", {kind: Candidate(calls, scan + kept, error)}, bench.read, **labels)
        # By itself the gather gets other blocks at every call: it would find the same few in the L2 cache.
        others = [random_blocks(cell, k) for _ in range(max(cell.sets, -(-BEYOND_L2 // kept)))]
        gathers: list[timing.Work] = [functools.partial(gather, i % cell.sets, o) for i, o in enumerate(others)]
        selects: list[timing.Work] = [functools.partial(select, i) for i in sets]
        for op, calls, moved in (("select", selects, scan), ("gather", gathers, kept)):
            rows += measured(bench, "sparse", op, {kind: Candidate(calls, moved, None)}, bench.read, **labels)
    return rows


def wrong_selection(cell: BenchCell, made: summaries.Summaries, k: int, chosen: torch.Tensor) -> str:
    """Why `chosen` is not the exact top k of right scores; empty if it is."""
    scores = torch.full(made.data.shape[:3], -float("inf"), device=chosen.device)
    again = selector.select(cell.q[0], made, cell.seq_lens, k, scores=scores)
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :k].int()
    order[..., max(0, made.blocks - 3) :] = -1
    if not (torch.equal(order, chosen) and torch.equal(again, chosen)):
        return "selection is not the top k of its scores"
    for b in range(cell.batch):
        low, high = made.dequantised_row(b)
        exact = reference.block_scores(cell.q[0][b : b + 1], low[None], high[None])[0, :, 1:-2]
        if exact.numel() and not (scores[b, :, 1:-2] - exact).abs().max() <= selector.SCORE_BOUND[made.data.dtype] * exact.abs().max():
            return "scores are off"
    return ""


def gdn(bench: Bench, batch: int, heads_v: int, key_heads: int, d: int = 128) -> list[Row]:
    """Gated delta rule with float32 and bf16 state, and importable baselines. Errors are multiples of their bounds."""
    one = batch * heads_v * d * d
    sets = max(1, min(16, -(-BEYOND_L2 // (4 * one))))
    qkv = torch.randn(batch, (2 * key_heads + heads_v) * d, device=bench.device).bfloat16()
    decay, beta = -0.1 * torch.rand(batch, heads_v, device=bench.device), torch.rand(batch, heads_v, device=bench.device)
    states = {"f32_state": [torch.randn(batch, heads_v, d, d, device=bench.device) for _ in range(sets)]}
    states["bf16_state"] = [s.bfloat16() for s in states["f32_state"]]
    shaped = [x.reshape(batch, -1, d) for x in qkv.split([key_heads * d, key_heads * d, heads_v * d], dim=1)]

    def exact(state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [  # in slices of sequences, which bounds the memory of float64
            reference.gdn_decode(*(x[i : i + 8] for x in (*shaped, decay, beta, state)), d**-0.5, True) for i in range(0, batch, 8)
        ]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def call(state: torch.Tensor) -> torch.Tensor:
        return gdn_decode(qkv, decay, beta, state, key_heads=key_heads, allow_bf16_state=True)

    def error(state: torch.Tensor) -> float:
        want, want_state = exact(state)
        out = reference.relative_error(call(state), want) / GDN_BOUND[BF16]
        return max(out, reference.relative_error(state, want_state) / STATE_ERROR_BOUND[state.dtype])

    found = {}
    want = exact(states["f32_state"][0])[0]
    per_set = [baselines.gated_delta(qkv, decay, beta, s, key_heads, d**-0.5) for s in states["f32_state"]]
    for name, held in states.items():
        calls: list[timing.Work] = [functools.partial(call, s) for s in held]
        found[name] = Candidate(calls, 2 * one * held[0].element_size(), functools.partial(error, held[0]), 1.0)
    for name, first in per_set[0].items():  # a baseline steps a state of its own: only its first call is comparable
        calls = [other[name] for other in per_set]
        gate = functools.partial(lambda first: reference.relative_error(first(), want) / GDN_BOUND[BF16], first)
        found[name] = Candidate(calls, 2 * one * 4, gate, 1.0, gate_after=False)
    note = f"{heads_v} value heads; errors are multiples of the bounds by dtype"
    return measured(bench, "gdn", "gdn_decode", found, bench.update, batch=batch, note=note)


def host(bench: Bench, context: int, k: int, heads_q: int, heads_kv: int, d: int, sets: int = 12) -> list[Row]:
    """One sequence with its KV in pinned host memory: zero-copy and staged gather of k blocks, against the bandwidth of the link."""
    pages, on_gpu = context // PAGE, bench.device == "cuda"
    k_host, v_host = (torch.empty(pages, heads_kv, PAGE, d, dtype=BF16, pin_memory=on_gpu) for _ in range(2))
    for cache in (k_host, v_host):
        cache.copy_(torch.empty(cache.shape, dtype=BF16, device=bench.device).normal_())
    q = torch.randn(1, heads_q, d, device=bench.device).bfloat16()
    lens = torch.tensor([context], dtype=torch.int32, device=bench.device)
    # Device pages: one sink, two local, then k staged ones.
    device = [torch.full((3 + k, *k_host.shape[1:]), float("nan"), dtype=BF16, device=bench.device) for _ in range(2)]
    table = -1 - torch.arange(pages, dtype=torch.int32, device=bench.device)[None]
    for slot, page in enumerate((0, pages - 2, pages - 1)):
        table[0, page] = slot
        device[0][slot].copy_(k_host[page])
        device[1][slot].copy_(v_host[page])
    order = [torch.stack([torch.randperm(pages - 3)[:k] + 1 for _ in range(heads_kv)])[None].int() for _ in range(sets)]
    chosen = [o.to(bench.device) for o in order]
    work = partials.Workspace.allocate(heads_kv, gather_decode.parts_of(k, PAGE, 1, 2, 32), heads_q // heads_kv, d, bench.device)
    out = torch.empty_like(q)

    def zero_copy(i: int) -> torch.Tensor:
        return gather_decode.gather_decode(q, *device, lens, chosen[i], table, k_host=k_host, v_host=v_host, out=out, workspace=work)

    def staged(i: int) -> torch.Tensor:
        host_gather.stage(k_host, v_host, table, chosen[i], *device, 3)
        return gather_decode.gather_decode(q, *device, lens, chosen[i], table, stage_page=3, out=out, workspace=work)

    exact = exact_attention(q.cpu(), stream_kept(k_host, v_host, torch.arange(pages)[None], order[0]))
    found = {}
    for name, gather in (("zero_copy_64", zero_copy), ("staged", staged)):
        error = functools.partial(lambda gather: reference.relative_error(gather(0).cpu(), exact), gather)
        found[name] = Candidate([functools.partial(gather, i) for i in range(sets)], 2 * k * PAGE * d * heads_kv * 2, error)
    return measured(bench, "host", "host_gather", found, bench.link, batch=1, context=context, k_blocks=k, dtype="bfloat16")
