"""Dense decode attention with dynamic load balancing: persistent programs that claim chunks from an atomic work queue.

Multiprocessors do not read equally fast; of a fixed partition the slowest ends a few per cent after the mean. Each program takes a
fixed split of a row, then claims chunks until none is left. Parts are numbered by their place in the row and merged in that order,
so results repeat bit for bit. The merge kernel resets the queue.

Half-token rows: where the queries of a KV head fill at most half a tensor-core tile, a token [D] is fetched as two rows [D / 2].
TMA fetches rows of 256 bytes as all first halves, then all second halves; rows of 128 bytes come in memory order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels import dense_tma, launch, partials


@triton.jit
def _softmax_tile_halves(b_q, b_k, b_v, seen, b_m, b_l, b_o, scale_log2, PRECISION: tl.constexpr):
    """`dense_tma.softmax_tile` over half-token rows: b_k, b_v [2 keys, D / 2]; b_q, b_o [16, D / 2]; b_m, b_l [8]; seen [keys].

    Rows of b_k and b_v alternate first and second half; b_q and b_o hold eight first halves, then eight second halves.
    Both halves of the queries are multiplied with both of the keys; matching products are kept. A tensor core takes 16 rows anyway.
    """
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
def _attend_tiles_halves(
    k, v, row_of, b_q, i_b, i_h, lo, hi, tiles, whole, n, stride_p, stride_h, scale_log2,
    D: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr, PAGED: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`dense_tma.attend_tiles` of one KV head over half-token rows."""
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
        b_m, b_l, b_o = _softmax_tile_halves(b_q, b_k, b_v, o_n >= 0, b_m, b_l, b_o, scale_log2, PRECISION)
    for i in tl.range(full, hi, num_stages=min(STAGES, 3)):
        at = (page * stride_p + i_h * stride_h + i % PER * BN) * 2
        if PAGED:
            page = tl.load(row_of + (i + 1) // PER, mask=i + 1 < tiles, other=0)
        ok = i * BN + tl.arange(0, 2 * BN) // 2 < n
        b_k, b_v = k.load([at, 0]), tl.where(ok[:, None], v.load([at, 0]), 0.0)
        b_m, b_l, b_o = _softmax_tile_halves(b_q, b_k, b_v, i * BN + o_n < n, b_m, b_l, b_o, scale_log2, PRECISION)
    return b_m, b_l, b_o


@triton.jit(do_not_specialize=["heads_kv", "rows", "splits", "chunks", "queued", "stride_table"])
def _queue(
    q, k, v, table, lens, o_parts, ml_parts, claims, scale_log2, heads_kv, rows, splits, chunks, queued, stride_table, stride_p, stride_h,
    GROUP: tl.constexpr, HEADS: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
    PAGED: tl.constexpr, HALVES: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
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
        # Claim the next item now: its number has arrived when this one is done.
        item = tl.num_programs(0) + tl.atomic_add(claims, 1, sem="relaxed")
        i_b, i_h, n, tiles, whole, row_of, b_q = dense_tma.load_row(
            q, lens, table, i_row, o_g, o_d, heads_kv, stride_table, GROUP, HEADS, D, PAGE, BN
        )
        last = (tiles.to(tl.int64) * queued // 1024).to(tl.int32)
        first = tiles - last
        if i_part < splits:
            begin, length, i_s, of = first * 0, first, i_part, splits
        else:
            begin, length, i_s, of = first, last, i_part - splits, chunks
        lo, hi = dense_tma.split_bounds(i_s, length, of)
        lo, hi = begin + lo, begin + hi
        if HALVES:
            b_m, b_l, b_o = _attend_tiles_halves(
                k, v, row_of, b_q, i_b, i_h, lo, hi, tiles, whole, n, stride_p, stride_h, scale_log2, D, PAGE, BN, PAGED, STAGES, PRECISION,
            )  # fmt: skip
            partials.store_halves(o_parts, ml_parts, i_row * parts + i_part, b_o, b_m, b_l, QUERIES, D)
        else:
            b_m, b_l, b_o = dense_tma.attend_tiles(
                k, v, row_of, b_q, i_b, i_h, lo, hi, tiles, whole, n, stride_p, stride_h, scale_log2,
                GROUP, HEADS, GP, D, PAGE, BN, PAGED, STAGES, PRECISION,
            )  # fmt: skip
            partials.store(o_parts, ml_parts, i_row * parts + i_part, b_o, b_m, b_l, QUERIES, GP, D)


def can_halve(q: torch.Tensor, k_cache: torch.Tensor, heads: int) -> bool:
    """Whether half-token rows apply: 256 bytes a token, fewer than 2^31 rows, one KV head of at most eight queries a program."""
    pages, heads_kv, page, d = k_cache.shape
    span = (pages - 1) * k_cache.stride(0) + (heads_kv - 1) * k_cache.stride(1) + page * d
    return heads == 1 and q.shape[1] // heads_kv <= 8 and d * q.element_size() == 256 and span < 2**30 * d


def launch_queue(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, table: torch.Tensor, seq_lens: torch.Tensor,
    workspace: partials.Workspace, *, paged: bool, scale_log2: float, splits: int, chunks: int, queued: float, programs: int, tile: int,
    heads: int, halves: bool,
) -> None:  # fmt: skip
    """Launch `_queue`: `splits` parts of each row, then `chunks` of its last share `queued`, into `workspace`.

    `programs` persistent programs claim them. `dense_decode` checks the arguments.
    """
    heads_kv, d = k_cache.shape[1], q.shape[2]
    width = d // 2 if halves else d
    _queue[(programs,)](
        q, dense_tma.descriptor(k_cache, tile, width), dense_tma.descriptor(v_cache, tile, width), table, seq_lens, workspace.o,
        workspace.ml, workspace.claims, scale_log2, heads_kv, q.shape[0] * heads_kv // heads, splits, chunks, round(queued * 1024),
        table.stride(0), k_cache.stride(0) // d, k_cache.stride(1) // d, HALVES=halves,
        **dense_tma.meta(q, k_cache, paged, tile, heads),
    )  # fmt: skip
