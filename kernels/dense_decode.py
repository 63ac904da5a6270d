"""Dense decode attention over a paged KV cache: split-KV flash decoding.

Shapes: q, out [B, HQ, D]; k_cache, v_cache [pages, KV heads, page, D]; page_table [B, pages]; seq_lens [B].
One program per (sequence, KV head, split) runs an online softmax over tiles; a second kernel merges the splits. The query heads of
a KV head share every tile. Memory-bound: 2 KV heads D itemsize bytes per token and layer. Reference: `reference.dense_decode`.
`ERROR_BOUND` bounds ||out - ref|| / ||ref|| against float64, by dtype of query and cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels import checks, dense_queue, dense_tma, launch, paging, partials

# The probabilities are rounded to the cache's dtype before they meet V, the output to the query's.
ERROR_BOUND = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 2e-5}
LOG2E = 1.4426950408889634
# Measured on an H100 (docs/log/2026-11-21-decode-kernels.md): fewer or more bytes in flight read slower.
TMA_TILE = 128  # rows
QUEUE_FROM = 700  # tiles per program from which the work queue saves more than its extra parts cost


@triton.jit
def _tile(i, first_tiles, skip, WINDOWED: tl.constexpr):
    """Index of the i-th tile that is attended to."""
    if WINDOWED:
        i = tl.where(i < first_tiles, i, i + skip)
    return i


@triton.jit(do_not_specialize=["heads_kv", "splits", "stride_table"])
def _dense(
    q, k, v, table, lens, out, o_parts, ml_parts,
    scale_log2, sink, window, heads_kv, splits,
    stride_table, k_p, k_h, k_t, v_p, v_h, v_t,
    GROUP: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
    WHOLE: tl.constexpr, PAGED: tl.constexpr, WINDOWED: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    i_s, i_row = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_row // heads_kv, i_row % heads_kv
    o_g, o_d, o_n = tl.arange(0, GP), tl.arange(0, D), tl.arange(0, BN)
    launch.wait_for_previous(PDL)
    n = tl.load(lens + i_b)
    tiles = tl.cdiv(n, BN)
    first_tiles = tiles
    skip = 0
    if WINDOWED:
        # Tiles of the sink, then tiles of the window; `skip` tiles between them are not read.
        first_tiles = tl.minimum(tl.cdiv(sink, BN), tiles)
        window_tile = tl.maximum(first_tiles, tl.maximum(n - window, 0) // BN)
        skip = window_tile - first_tiles
        tiles = tiles - skip
    p_q = q + (i_row.to(tl.int64) * GROUP + o_g[:, None]) * D + o_d[None, :]
    b_q = tl.load(p_q, mask=o_g[:, None] < GROUP, other=0.0)
    b_m = tl.full([GP], -float("inf"), dtype=tl.float32)
    b_l = tl.zeros([GP], dtype=tl.float32)
    b_o = tl.zeros([GP, D], dtype=tl.float32)
    lo = (i_s.to(tl.int64) * tiles // splits).to(tl.int32)
    hi = ((i_s + 1).to(tl.int64) * tiles // splits).to(tl.int32)
    # Prefetch the next tile's table entries: a tile's address never waits on a load.
    t_next = _tile(lo, first_tiles, skip, WINDOWED) * BN
    page_next = paging.pages(table, i_b, stride_table, t_next, t_next + o_n, n, PAGE, BN, PAGED)
    for i in tl.range(lo, hi, num_stages=STAGES):
        o_t = t_next + o_n
        page = page_next
        t_next = _tile(i + 1, first_tiles, skip, WINDOWED) * BN
        page_next = paging.pages(table, i_b, stride_table, t_next, t_next + o_n, n, PAGE, BN, PAGED)
        ok = o_t < n
        b_k = tl.load(paging.rows(k, page, o_t, i_h, k_p, k_h, k_t, PAGE, PAGED)[:, None] + o_d[None, :], mask=ok[:, None], other=0.0)
        b_v = tl.load(paging.rows(v, page, o_t, i_h, v_p, v_h, v_t, PAGE, PAGED)[:, None] + o_d[None, :], mask=ok[:, None], other=0.0)
        seen = ok
        if WINDOWED:
            seen = ok & ((o_t < sink) | (o_t >= n - window))
        b_m, b_l, b_o = dense_tma.softmax_tile(b_q, b_k, b_v, seen[None, :], b_m, b_l, b_o, scale_log2, PRECISION)
    p_out = out + i_row.to(tl.int64) * GROUP * D
    if WHOLE:
        b_o = b_o / tl.where(b_l == 0.0, 1.0, b_l)[:, None]
        tl.store(p_out + o_g[:, None] * D + o_d[None, :], b_o.to(out.dtype.element_ty), mask=o_g[:, None] < GROUP)
    else:
        partials.store(o_parts, ml_parts, i_row * splits + i_s, b_o, b_m, b_l, GROUP, GP, D)


def splits_for(rows: int, max_tokens: int, tile: int, programs: int) -> int:
    """Splits per (sequence, KV head) row with the fewest tiles in sequence when `programs` run at a time.

    A second wave of programs costs about 5 % even where it balances better (measured on an H100: 4 splits of 32 rows beat
    33), and each split costs a part to merge, so a split must save at least 1 % to be worth it.
    """
    tiles = max(1, -(-max_tokens // tile))
    best, best_cost = 1, float("inf")
    for splits in range(1, min(tiles, 256) + 1):
        waves = -(-rows * splits // programs)
        cost = waves * -(-tiles // splits) * (1.05 if waves > 1 else 1.0) + 0.02 * splits
        if cost < best_cost * 0.99:
            best, best_cost = splits, cost
    return best


def _resident_programs(device: torch.device, per_sm: int) -> int:
    """Programs that run at a time; four on a CPU, so that the interpreter exercises the merging of splits."""
    return per_sm * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def _tma_plan(k_cache: torch.Tensor, paged: bool) -> tuple[int, int]:
    """(KV heads per program, tile) for TMA: one head and whole tiles; for small pages as many adjacent heads as fill a tile."""
    heads_kv, page, d = k_cache.shape[1:]
    heads = 1
    while paged and k_cache.stride(1) == page * d and heads * page < TMA_TILE and heads_kv % (2 * heads) == 0:
        heads *= 2
    return heads, min(TMA_TILE, heads * page) if paged else TMA_TILE


def check_cache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor | None,
    apart: bool = False,
) -> tuple[int, int]:
    """Validate the arguments every decode attention shares; returns (KV heads, tokens a sequence can hold). `apart`: only the query heads
    of a sequence need lie together.
    """
    checks.query(q) if apart else checks.tensor("q", q, [None, None, None], checks.FLOATS, contiguous=True)
    batch, heads_q, d = q.shape
    checks.head_dim(d)
    checks.tensor("k_cache", k_cache, [None, None, None, d], [q.dtype], q)
    checks.tensor("v_cache", v_cache, list(k_cache.shape), [q.dtype], q)
    checks.head_group(heads_q, k_cache.shape[1])
    checks.pairs("q", batch, k_cache.shape[1])
    checks.tensor("seq_lens", seq_lens, [batch], [torch.int32], q)
    if page_table is None:
        if k_cache.shape[0] != batch:
            raise ValueError(f"k_cache: {k_cache.shape[0]} sequences for a batch of {batch}; a paged cache needs page_table")
        return k_cache.shape[1], k_cache.shape[2]
    checks.block_tokens(k_cache.shape[2], "k_cache page")
    checks.tensor("page_table", page_table, [batch, None], [torch.int32], q)
    return k_cache.shape[1], k_cache.shape[2] * page_table.shape[1]


def dense_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    sink: int = 0,
    window: int | None = None,
    max_tokens: int | None = None,
    out: torch.Tensor | None = None,
    workspace: partials.Workspace | None = None,
    splits: int | None = None,
    tile: int | None = None,
    per_sm: int | None = None,
    tma: bool | None = None,
    heads: int | None = None,
    queued: float | None = None,
    chunks: int | None = None,
    halves: bool | None = None,
) -> torch.Tensor:
    """Attention of one query token per sequence over its whole context, or over a sink and a window of it.

    q [B, HQ, D] contiguous, bf16, fp16 or fp32. k_cache, v_cache [pages, KV heads, page, D] of the same dtype, any strides but the
    last (token-major pages: pass a permuted view), page a power of two from 16 to 256. page_table [B, max pages] int32, or None
    for contiguous KV [B, KV heads, N, D]. seq_lens [B] int32 on the device, the newest token included.
    `window` keeps the first `sink` and the last `window` tokens. `max_tokens` (default: what the table can hold) bounds seq_lens and
    sets the number of splits, not what is read. `workspace` and `out` make the call allocation-free, as a CUDA graph needs.

    Tuning, all with defaults by layout and GPU: `splits` of the context, `tile` tokens, programs `per_sm`; `tma` tile loads with
    `heads` KV heads a program; a share `queued` of every row in `chunks` of a work queue, there with half-token rows (`halves`).

    Returns [B, HQ, D] in q's dtype; zeros for a sequence of length 0; the same bits at every call. Raises `ValueError` naming a bad
    argument. Lengths and page numbers stay on the device and are not checked.
    """
    heads_kv, capacity = check_cache(q, k_cache, v_cache, seq_lens, page_table)
    batch, heads_q, d = q.shape
    group = heads_q // heads_kv
    if sink < 0 or (sink and window is None):
        raise ValueError(f"sink: {sink} needs a window and must not be negative")
    if window is not None:
        checks.at_least("window", window, 1)
    max_tokens = capacity if max_tokens is None else checks.at_least("max_tokens", max_tokens, 1)
    reach = max_tokens if window is None else min(max_tokens, sink + window + 512)
    best = _tma_plan(k_cache, page_table is not None)
    if tma is None:
        fits = dense_tma.supported(k_cache, v_cache, best[1] if tile is None else tile, best[0] if heads is None else heads)
        tma = q.is_cuda and d * q.element_size() <= 256 and window is None and fits and best[1] >= 32
    heads = (best[0] if tma else 1) if heads is None else heads
    tile = (best[1] if tma else 64) if tile is None else tile
    checks.block_tokens(tile, "tile")
    if heads_kv % checks.at_least("heads", heads, 1) or (heads > 1 and (not tma or page_table is None)):
        raise ValueError(f"heads: {heads} of {heads_kv} KV heads a program; more than one needs a page table and TMA")
    if tma and (window is not None or not dense_tma.supported(k_cache, v_cache, tile, heads)):
        raise ValueError("tma: needs keys and values laid out alike in fewer than 2^31 rows, pages of whole tiles and no window")
    rows = batch * heads_kv // heads
    # Few large TMA tiles in flight read best; without TMA, more and smaller tiles. Measured on an H100.
    programs = _resident_programs(q.device, ((1 if tma and tile > 64 else 2) if per_sm is None else checks.at_least("per_sm", per_sm, 1)))
    if queued is None:
        long = tma and heads == 1 and splits is None and chunks is None and rows * reach >= QUEUE_FROM * tile * programs
        queued = 1 / 8 if long else 0.0
    if not 0 <= queued <= 1 or (queued and not tma):
        raise ValueError(f"queued: {queued} is not a share, or TMA is off")
    if splits is None:
        splits = max(1, programs // rows) if queued else splits_for(rows, reach * heads, tile, programs)
    checks.at_least("splits", splits, 1)
    if chunks is None:
        chunks = max(1, min(-(-8 * programs // rows), 256 - splits)) if queued else 0
    if bool(checks.at_least("chunks", chunks, 0)) != bool(queued):
        raise ValueError(f"chunks: {chunks} of a queued share of {queued}")
    parts = splits + chunks
    fits = bool(queued) and dense_queue.can_halve(q, k_cache, heads)
    halves = fits if halves is None else halves
    if halves and not fits:
        raise ValueError("halves: needs a queue, one KV head a program with up to 8 queries, and tokens of 256 bytes")
    out = torch.empty_like(q) if out is None else checks.tensor("out", out, q.shape, [q.dtype], q, contiguous=True)
    if workspace is None:
        workspace = partials.Workspace.allocate(rows, parts, group * heads, d, q.device)
    workspace.check(rows, parts, group * heads, d, q)
    table = seq_lens if page_table is None else page_table
    scale_log2 = checks.softmax_scale(scale, d) * LOG2E
    launch_args = {"paged": page_table is not None, "scale_log2": scale_log2, "splits": splits, "tile": tile, "heads": heads}
    if queued:
        dense_queue.launch_queue(
            q, k_cache, v_cache, table, seq_lens, workspace, chunks=chunks, queued=queued, programs=programs, halves=halves, **launch_args
        )
    elif tma:
        dense_tma.launch_split(q, k_cache, v_cache, table, seq_lens, out, workspace, **launch_args)
    else:
        _dense[(splits, rows)](
            q, k_cache, v_cache, table, seq_lens, out, workspace.o, workspace.ml, scale_log2, sink, 0 if window is None else window,
            heads_kv, splits, table.stride(0), *k_cache.stride()[:3], *v_cache.stride()[:3],
            GROUP=group, GP=max(16, triton.next_power_of_2(group)), D=d, PAGE=k_cache.shape[2], BN=tile,
            WHOLE=splits == 1, PAGED=page_table is not None, WINDOWED=window is not None, STAGES=3,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=4, **launch.options(),
        )  # fmt: skip
    if parts > 1:
        partials.merge(workspace, out, rows, parts, group * heads)
    return out
