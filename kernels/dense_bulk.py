"""The dense decode kernel whose tiles come through the GPU's bulk copy engine, also where a page of one head is less than a tile.

The cache is an array of rows [pages KV heads page, D]: a page holds all tokens of its first head, then all of the next. A tile is
`tile` neighbouring rows, so it may be part of one head of a page or span several of them. One program attends for `heads` KV
heads at once and walks the rows of a page in the order they lie in memory. The queries of all its heads share every product with a
tile; those whose KV head a row is not of are masked. Pages of 16 tokens are read so, in runs of all their heads; for pages of a
whole tile one head a program is faster (docs/kernels.md).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import launch, partials


@triton.jit
def absorb(b_q, b_k, b_v, seen, b_m, b_l, b_o, scale_log2, PRECISION: tl.constexpr):
    """One tile of the online softmax: maxima b_m, sums b_l and outputs b_o after keys b_k and values b_v where `seen`, which
    broadcasts to [queries, keys]; what is not seen must be finite in b_v."""
    s = launch.dot(b_q, tl.trans(b_k), tl.zeros([b_q.shape[0], b_k.shape[0]], dtype=tl.float32), PRECISION) * scale_log2
    s = tl.where(seen, s, -float("inf"))
    m_new = tl.maximum(b_m, tl.max(s, 1))
    m_safe = tl.where(m_new == -float("inf"), 0.0, m_new)
    p = tl.exp2(s - m_safe[:, None])
    alpha = tl.exp2(b_m - m_safe)
    b_l = b_l * alpha + tl.sum(p, 1)
    b_o = launch.dot(p.to(b_v.dtype), b_v, b_o * alpha[:, None], PRECISION)
    return m_new, b_l, b_o


@triton.jit
def _absorb_halves(b_q, b_k, b_v, seen, b_m, b_l, b_o, scale_log2, PRECISION: tl.constexpr):
    """`absorb` of tokens cut in two: b_k, b_v [2 keys, D / 2] have the halves of a token in neighbouring rows, as they lie in memory;
    b_q, b_o [16, D / 2] the first halves of eight queries, then the second ones; b_m, b_l [8]; `seen` [keys]. Each product is
    computed for both halves at once, and the one of two entries whose halves belong together is kept: the padding of eight queries to
    the sixteen a tensor core takes is put to use."""
    KEYS: tl.constexpr = b_k.shape[0] // 2
    match = (tl.arange(0, 16)[:, None] // 8) == (tl.arange(0, 2 * KEYS)[None, :] % 2)
    s = launch.dot(b_q, tl.trans(b_k), tl.zeros([16, 2 * KEYS], dtype=tl.float32), PRECISION)
    s = tl.sum(tl.sum(tl.reshape(tl.where(match, s, 0.0), [2, 8, KEYS, 2]), 3), 0) * scale_log2
    s = tl.where(seen[None, :], s, -float("inf"))
    m_new = tl.maximum(b_m, tl.max(s, 1))
    m_safe = tl.where(m_new == -float("inf"), 0.0, m_new)
    p = tl.exp2(s - m_safe[:, None])
    alpha = tl.exp2(b_m - m_safe)
    b_l = b_l * alpha + tl.sum(p, 1)
    wide = tl.reshape(tl.broadcast_to(p[None, :, :, None], [2, 8, KEYS, 2]), [16, 2 * KEYS])
    both = tl.reshape(tl.broadcast_to(alpha[None, :], [2, 8]), [16])
    b_o = launch.dot(tl.where(match, wide, 0.0).to(b_v.dtype), b_v, b_o * both[:, None], PRECISION)
    return m_new, b_l, b_o


@triton.jit
def _span_halves(
    k, v, row_of, b_q, i_b, i_h, lo, hi, tiles, whole, n, stride_p, stride_h, scale_log2,
    D: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr, PAGED: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`_span` of one head over caches whose rows are halves of tokens."""
    PER: tl.constexpr = PAGE // BN
    o_n = tl.arange(0, BN)
    b_m = tl.full([8], -float("inf"), dtype=tl.float32)
    b_l = tl.zeros([8], dtype=tl.float32)
    b_o = tl.zeros([16, D // 2], dtype=tl.float32)
    page = i_b
    if PAGED:
        page = tl.load(row_of + lo // PER, mask=lo < tiles, other=0)
    full = tl.maximum(lo, tl.minimum(hi, whole))
    for i in tl.range(lo, full, num_stages=STAGES):
        at = (page * stride_p + i_h * stride_h + i % PER * BN) * 2
        if PAGED:
            page = tl.load(row_of + (i + 1) // PER, mask=i + 1 < tiles, other=0)
        b_k, b_v = k.load([at, 0]), v.load([at, 0])
        b_m, b_l, b_o = _absorb_halves(b_q, b_k, b_v, o_n >= 0, b_m, b_l, b_o, scale_log2, PRECISION)
    for i in tl.range(full, hi, num_stages=min(STAGES, 3)):
        at = (page * stride_p + i_h * stride_h + i % PER * BN) * 2
        if PAGED:
            page = tl.load(row_of + (i + 1) // PER, mask=i + 1 < tiles, other=0)
        ok = i * BN + tl.arange(0, 2 * BN) // 2 < n
        b_k, b_v = k.load([at, 0]), tl.where(ok[:, None], v.load([at, 0]), 0.0)
        b_m, b_l, b_o = _absorb_halves(b_q, b_k, b_v, i * BN + o_n < n, b_m, b_l, b_o, scale_log2, PRECISION)
    return b_m, b_l, b_o


@triton.jit
def _span(
    k, v, row_of, b_q, i_b, i_h, lo, hi, tiles, whole, n, stride_p, stride_h, scale_log2,
    GROUP: tl.constexpr, HEADS: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
    PAGED: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Maxima, sums and outputs of queries b_q over tiles lo to hi of one sequence; strides in rows of the cache."""
    PER: tl.constexpr = HEADS * PAGE // BN  # tiles per page
    o_g, o_n = tl.arange(0, GP), tl.arange(0, BN)
    b_m = tl.full([GP], -float("inf"), dtype=tl.float32)
    b_l = tl.zeros([GP], dtype=tl.float32)
    b_o = tl.zeros([GP, D], dtype=tl.float32)
    # The table entry of the next tile is fetched while this one is computed: a tile's address never waits on a load.
    page = i_b
    if PAGED:
        page = tl.load(row_of + lo // PER, mask=lo < tiles, other=0)
    full = tl.maximum(lo, tl.minimum(hi, whole))
    for i in tl.range(lo, full, num_stages=STAGES):
        row = i % PER * BN
        at = page * stride_p + (i_h + row // PAGE) * stride_h + row % PAGE if HEADS > 1 else page * stride_p + i_h * stride_h + row
        if PAGED:
            page = tl.load(row_of + (i + 1) // PER, mask=i + 1 < tiles, other=0)
        b_k, b_v = k.load([at, 0]), v.load([at, 0])
        mine = o_g[:, None] // GROUP == (row + o_n[None, :]) // PAGE if HEADS > 1 else (o_n >= 0)[None, :]
        b_m, b_l, b_o = absorb(b_q, b_k, b_v, mine, b_m, b_l, b_o, scale_log2, PRECISION)
    # A page that is not full: the copies bring rows that hold no token, so values are masked as well.
    for i in tl.range(full, hi, num_stages=min(STAGES, 3)):
        row = i % PER * BN
        at = page * stride_p + (i_h + row // PAGE) * stride_h + row % PAGE if HEADS > 1 else page * stride_p + i_h * stride_h + row
        if PAGED:
            page = tl.load(row_of + (i + 1) // PER, mask=i + 1 < tiles, other=0)
        ok = i // PER * PAGE + (row + o_n) % PAGE < n
        mine = o_g[:, None] // GROUP == (row + o_n[None, :]) // PAGE if HEADS > 1 else (o_n >= 0)[None, :]
        b_k, b_v = k.load([at, 0]), tl.where(ok[:, None], v.load([at, 0]), 0.0)
        b_m, b_l, b_o = absorb(b_q, b_k, b_v, mine & ok[None, :], b_m, b_l, b_o, scale_log2, PRECISION)
    return b_m, b_l, b_o


@triton.jit(do_not_specialize=["heads_kv", "splits", "stride_table"])
def _bulk(
    q, k, v, table, lens, out, o_parts, ml_parts, scale_log2, heads_kv, splits, stride_table, stride_p, stride_h,
    GROUP: tl.constexpr, HEADS: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
    WHOLE: tl.constexpr, PAGED: tl.constexpr, HALVES: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    PER: tl.constexpr = HEADS * PAGE // BN
    QUERIES: tl.constexpr = HEADS * GROUP
    i_s, i_row = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_row // (heads_kv // HEADS), i_row % (heads_kv // HEADS) * HEADS
    if HALVES:
        o_g, o_d = tl.arange(0, 16) % 8, tl.arange(0, D // 2)[None, :] + tl.arange(0, 16)[:, None] // 8 * (D // 2)
    else:
        o_g, o_d = tl.arange(0, GP), tl.arange(0, D)[None, :]
    launch.wait_for_previous(PDL)
    n = tl.load(lens + i_b)
    if HEADS == 1:
        tiles, whole = tl.cdiv(n, BN), n // BN
    else:
        tiles, whole = tl.cdiv(n, PAGE) * PER, n // PAGE * PER
    p_q = q + (i_row.to(tl.int64) * QUERIES + o_g[:, None]) * D + o_d
    b_q = tl.load(p_q, mask=o_g[:, None] < QUERIES, other=0.0)
    lo = (i_s.to(tl.int64) * tiles // splits).to(tl.int32)
    hi = ((i_s + 1).to(tl.int64) * tiles // splits).to(tl.int32)
    row_of = table + i_b.to(tl.int64) * stride_table
    if HALVES:
        b_m, b_l, b_o = _span_halves(
            k, v, row_of, b_q, i_b, i_h, lo, hi, tiles, whole, n, stride_p, stride_h, scale_log2, D, PAGE, BN, PAGED, STAGES, PRECISION,
        )  # fmt: skip
    else:
        b_m, b_l, b_o = _span(
            k, v, row_of, b_q, i_b, i_h, lo, hi, tiles, whole, n, stride_p, stride_h, scale_log2,
            GROUP, HEADS, GP, D, PAGE, BN, PAGED, STAGES, PRECISION,
        )  # fmt: skip
    if WHOLE:
        b_l = tl.where(b_l == 0.0, 1.0, b_l)
        if HALVES:
            b_l = tl.reshape(tl.broadcast_to(b_l[None, :], [2, 8]), [16])
        p_out = out + (i_row.to(tl.int64) * QUERIES + o_g[:, None]) * D + o_d
        tl.store(p_out, (b_o / b_l[:, None]).to(out.dtype.element_ty), mask=o_g[:, None] < QUERIES)
    elif HALVES:
        partials.leave_halves(o_parts, ml_parts, i_row * splits + i_s, b_o, b_m, b_l, QUERIES, D)
    else:
        partials.leave(o_parts, ml_parts, i_row * splits + i_s, b_o, b_m, b_l, QUERIES, GP, D)


@triton.jit(do_not_specialize=["heads_kv", "rows", "splits", "chunks", "queued", "stride_table"])
def _queue(
    q, k, v, table, lens, o_parts, ml_parts, claims, scale_log2, heads_kv, rows, splits, chunks, queued, stride_table, stride_p, stride_h,
    GROUP: tl.constexpr, HEADS: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
    PAGED: tl.constexpr, HALVES: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    PER: tl.constexpr = HEADS * PAGE // BN
    QUERIES: tl.constexpr = HEADS * GROUP
    if HALVES:
        o_g, o_d = tl.arange(0, 16) % 8, tl.arange(0, D // 2)[None, :] + tl.arange(0, 16)[:, None] // 8 * (D // 2)
    else:
        o_g, o_d = tl.arange(0, GP), tl.arange(0, D)[None, :]
    parts = splits + chunks
    launch.wait_for_previous(PDL)
    # Neighbouring items are the same part of neighbouring rows: the heads of a page are read at about the same time.
    item = tl.program_id(0)
    while item < rows * parts:
        i_row, i_part = item % rows, item // rows
        i_b, i_h = i_row // (heads_kv // HEADS), i_row % (heads_kv // HEADS) * HEADS
        n = tl.load(lens + i_b)
        if HEADS == 1:
            tiles, whole = tl.cdiv(n, BN), n // BN
        else:
            tiles, whole = tl.cdiv(n, PAGE) * PER, n // PAGE * PER
        last = (tiles.to(tl.int64) * queued // 1024).to(tl.int32)
        first = tiles - last
        if i_part < splits:
            begin, length, i_s, of = first * 0, first, i_part, splits
        else:
            begin, length, i_s, of = first, last, i_part - splits, chunks
        lo = begin + (i_s.to(tl.int64) * length // of).to(tl.int32)
        hi = begin + ((i_s + 1).to(tl.int64) * length // of).to(tl.int32)
        row_of = table + i_b.to(tl.int64) * stride_table
        p_q = q + (i_row.to(tl.int64) * QUERIES + o_g[:, None]) * D + o_d
        b_q = tl.load(p_q, mask=o_g[:, None] < QUERIES, other=0.0)
        if HALVES:
            b_m, b_l, b_o = _span_halves(
                k, v, row_of, b_q, i_b, i_h, lo, hi, tiles, whole, n, stride_p, stride_h, scale_log2, D, PAGE, BN, PAGED, STAGES, PRECISION,
            )  # fmt: skip
            partials.leave_halves(o_parts, ml_parts, i_row * parts + i_part, b_o, b_m, b_l, QUERIES, D)
        else:
            b_m, b_l, b_o = _span(
                k, v, row_of, b_q, i_b, i_h, lo, hi, tiles, whole, n, stride_p, stride_h, scale_log2,
                GROUP, HEADS, GP, D, PAGE, BN, PAGED, STAGES, PRECISION,
            )  # fmt: skip
            partials.leave(o_parts, ml_parts, i_row * parts + i_part, b_o, b_m, b_l, QUERIES, GP, D)
        item = tl.num_programs(0) + tl.atomic_add(claims, 1, sem="relaxed")


def can(k_cache: torch.Tensor, v_cache: torch.Tensor, tile: int, heads: int) -> bool:
    """Whether tiles of `tile` rows cut the caches without rest: rows [D] on a lattice of fewer than 2^31, tokens of a head next to
    each other, keys and values laid out alike, whole tiles in what a program reads of a page (a run, if a tile spans heads)."""
    pages, heads_kv, page, d = k_cache.shape
    stride = k_cache.stride()
    lattice = stride == v_cache.stride() and stride[3] == 1 and stride[2] == d and stride[0] % d == 0 and stride[1] % d == 0
    aligned = all(x.data_ptr() % 16 == 0 for x in (k_cache, v_cache)) and d * k_cache.element_size() % 16 == 0
    few = (pages - 1) * stride[0] + (heads_kv - 1) * stride[1] + page * d < 2**31 * d
    return lattice and aligned and few and heads * page % tile == 0 and (page >= tile or (heads > 1 and stride[1] == page * d))


def _rows(x: torch.Tensor) -> torch.Tensor:
    """The rows [D] from the first of a cache to its last, those of other caches between them included."""
    pages, heads_kv, page, d = x.shape
    return x.as_strided(((pages - 1) * x.stride(0) // d + (heads_kv - 1) * x.stride(1) // d + page, d), (d, 1))


def launch_bulk(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, table: torch.Tensor, seq_lens: torch.Tensor, out: torch.Tensor,
    workspace: partials.Workspace, *, paged: bool, scale_log2: float, splits: int, chunks: int, queued: float, programs: int,
    tile: int, heads: int, halves: bool, stages: int, num_warps: int, dependent: bool,
) -> None:  # fmt: skip
    """Leave the attention of `dense_decode` in `out`, or with several splits its parts in `workspace`. Arguments are checked there.

    With `chunks`, the last `queued` of every row is cut in so many chunks, which `programs` programs claim as they finish.
    """
    heads_kv, page, d = k_cache.shape[1], k_cache.shape[2], q.shape[2]
    group, rows = q.shape[1] // heads_kv, q.shape[0] * heads_kv // heads
    width = d // 2 if halves else d
    k, v = (TensorDescriptor.from_tensor(_rows(x).view(-1, width), [tile * d // width, width]) for x in (k_cache, v_cache))
    common = {
        "GROUP": group, "HEADS": heads, "GP": max(16, triton.next_power_of_2(group * heads)), "D": d, "PAGE": page, "BN": tile,
        "PAGED": paged, "STAGES": stages, "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32", "num_warps": num_warps,
        **launch.options(dependent),
    }  # fmt: skip
    strides = table.stride(0), k_cache.stride(0) // d, k_cache.stride(1) // d
    if chunks:
        _queue[(programs,)](
            q, k, v, table, seq_lens, workspace.o, workspace.ml, workspace.claims, scale_log2, heads_kv, rows, splits, chunks,
            round(queued * 1024), *strides, HALVES=halves, **common,
        )  # fmt: skip
    else:
        _bulk[(splits, rows)](
            q,
            k,
            v,
            table,
            seq_lens,
            out,
            workspace.o,
            workspace.ml,
            scale_log2,
            heads_kv,
            splits,
            *strides,
            WHOLE=splits == 1,
            HALVES=halves,
            **common,
        )
