"""Dense decode attention whose tiles are fetched by the tensor memory accelerator (TMA).

Shapes: the cache is rows [pages KV heads page, D]; a page holds all tokens of its first head, then all of the next.
A tile is `tile` neighbouring rows: part of one head of a page, or several heads of it.
One program attends for `heads` KV heads and reads the rows of a page in memory order. The queries of all its heads share every
product with a tile; those of another KV head are masked. Pages of 16 tokens need this: one head of theirs is less than a tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import launch, partials


@triton.jit
def softmax_tile(b_q, b_k, b_v, seen, b_m, b_l, b_o, scale_log2, PRECISION: tl.constexpr):
    """One step of the online softmax: maxima b_m [GP], sums b_l [GP], outputs b_o [GP, D] after keys b_k and values b_v [BN, D].

    `seen` broadcasts to [GP, BN]; values that are not seen must be finite.
    """
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
def attend_tiles(
    k, v, row_of, b_q, i_b, i_h, lo, hi, tiles, whole, n, stride_p, stride_h, scale_log2,
    GROUP: tl.constexpr, HEADS: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
    PAGED: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax of queries b_q [GP, D] over tiles lo to hi of one sequence; strides in rows of the cache."""
    PER: tl.constexpr = HEADS * PAGE // BN  # tiles per page
    o_g, o_n = tl.arange(0, GP), tl.arange(0, BN)
    b_m = tl.full([GP], -float("inf"), dtype=tl.float32)
    b_l = tl.zeros([GP], dtype=tl.float32)
    b_o = tl.zeros([GP, D], dtype=tl.float32)
    # Prefetch the next tile's table entry: a tile's address never waits on a load.
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
        b_m, b_l, b_o = softmax_tile(b_q, b_k, b_v, mine, b_m, b_l, b_o, scale_log2, PRECISION)
    # Pages that are not full: TMA brings rows that hold no token, so values are masked as well.
    for i in tl.range(full, hi, num_stages=min(STAGES, 3)):
        row = i % PER * BN
        at = page * stride_p + (i_h + row // PAGE) * stride_h + row % PAGE if HEADS > 1 else page * stride_p + i_h * stride_h + row
        if PAGED:
            page = tl.load(row_of + (i + 1) // PER, mask=i + 1 < tiles, other=0)
        ok = i // PER * PAGE + (row + o_n) % PAGE < n
        mine = o_g[:, None] // GROUP == (row + o_n[None, :]) // PAGE if HEADS > 1 else (o_n >= 0)[None, :]
        b_k, b_v = k.load([at, 0]), tl.where(ok[:, None], v.load([at, 0]), 0.0)
        b_m, b_l, b_o = softmax_tile(b_q, b_k, b_v, mine & ok[None, :], b_m, b_l, b_o, scale_log2, PRECISION)
    return b_m, b_l, b_o


@triton.jit
def load_row(
    q, lens, table, i_row, o_g, o_d, heads_kv, stride_table,
    GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Row `i_row` of (sequence, HEADS KV heads): sequence, first KV head, tokens, tiles, full tiles, page-table row, queries."""
    i_b, i_h = i_row // (heads_kv // HEADS), i_row % (heads_kv // HEADS) * HEADS
    n = tl.load(lens + i_b)
    if HEADS == 1:
        tiles, whole = tl.cdiv(n, BN), n // BN
    else:
        tiles, whole = tl.cdiv(n, PAGE) * (HEADS * PAGE // BN), n // PAGE * (HEADS * PAGE // BN)
    p_q = q + (i_row.to(tl.int64) * (HEADS * GROUP) + o_g[:, None]) * D + o_d
    b_q = tl.load(p_q, mask=o_g[:, None] < HEADS * GROUP, other=0.0)
    return i_b, i_h, n, tiles, whole, table + i_b.to(tl.int64) * stride_table, b_q


@triton.jit
def split_bounds(i, length, of):
    """First and last tile of split `i` of `of` equal splits of `length` tiles."""
    return (i.to(tl.int64) * length // of).to(tl.int32), ((i + 1).to(tl.int64) * length // of).to(tl.int32)


@triton.jit(do_not_specialize=["heads_kv", "splits", "stride_table"])
def _dense_tma(
    q, k, v, table, lens, out, o_parts, ml_parts, scale_log2, heads_kv, splits, stride_table, stride_p, stride_h,
    GROUP: tl.constexpr, HEADS: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
    WHOLE: tl.constexpr, PAGED: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    QUERIES: tl.constexpr = HEADS * GROUP
    i_s, i_row = tl.program_id(0), tl.program_id(1)
    o_g, o_d = tl.arange(0, GP), tl.arange(0, D)[None, :]
    launch.wait_for_previous(PDL)
    i_b, i_h, n, tiles, whole, row_of, b_q = load_row(q, lens, table, i_row, o_g, o_d, heads_kv, stride_table, GROUP, HEADS, D, PAGE, BN)
    lo, hi = split_bounds(i_s, tiles, splits)
    b_m, b_l, b_o = attend_tiles(
        k, v, row_of, b_q, i_b, i_h, lo, hi, tiles, whole, n, stride_p, stride_h, scale_log2,
        GROUP, HEADS, GP, D, PAGE, BN, PAGED, STAGES, PRECISION,
    )  # fmt: skip
    if WHOLE:
        b_o = b_o / tl.where(b_l == 0.0, 1.0, b_l)[:, None]
        p_out = out + (i_row.to(tl.int64) * QUERIES + o_g[:, None]) * D + o_d
        tl.store(p_out, b_o.to(out.dtype.element_ty), mask=o_g[:, None] < QUERIES)
    else:
        partials.store(o_parts, ml_parts, i_row * splits + i_s, b_o, b_m, b_l, QUERIES, GP, D)


def supported(k_cache: torch.Tensor, v_cache: torch.Tensor, tile: int, heads: int) -> bool:
    """Whether TMA tiles of `tile` rows divide the caches.

    They do with fewer than 2^31 aligned rows [D], tokens of a head adjacent, equal strides of keys and values, and whole tiles per page
    (adjacent heads, if a tile spans several).
    """
    pages, heads_kv, page, d = k_cache.shape
    stride = k_cache.stride()
    lattice = stride == v_cache.stride() and stride[3] == 1 and stride[2] == d and stride[0] % d == 0 and stride[1] % d == 0
    aligned = all(x.data_ptr() % 16 == 0 for x in (k_cache, v_cache)) and d * k_cache.element_size() % 16 == 0
    few = (pages - 1) * stride[0] + (heads_kv - 1) * stride[1] + page * d < 2**31 * d
    return lattice and aligned and few and heads * page % tile == 0 and (page >= tile or (heads > 1 and stride[1] == page * d))


def descriptor(x: torch.Tensor, tile: int, width: int) -> TensorDescriptor:
    """TMA descriptor of a cache as rows [width], gaps between its pages included, in boxes of `tile` tokens."""
    pages, heads_kv, page, d = x.shape
    rows = (pages - 1) * x.stride(0) // d + (heads_kv - 1) * x.stride(1) // d + page
    return TensorDescriptor.from_tensor(x.as_strided((rows * d // width, width), (width, 1)), [tile * d // width, width])


def meta(q: torch.Tensor, k_cache: torch.Tensor, paged: bool, tile: int, heads: int) -> dict[str, object]:
    """Compile-time arguments of the TMA kernels."""
    group = q.shape[1] // k_cache.shape[1]
    return {
        "GROUP": group, "HEADS": heads, "GP": max(16, triton.next_power_of_2(group * heads)), "D": q.shape[2], "PAGE": k_cache.shape[2],
        "BN": tile, "PAGED": paged, "STAGES": 3, "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32", "num_warps": 4,
        **launch.options(),
    }  # fmt: skip


def launch_split(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, table: torch.Tensor, seq_lens: torch.Tensor, out: torch.Tensor,
    workspace: partials.Workspace, *, paged: bool, scale_log2: float, splits: int, tile: int, heads: int,
) -> None:  # fmt: skip
    """Launch `_dense_tma`: attention into `out`, or with several splits its parts into `workspace`. `dense_decode` checks arguments."""
    heads_kv, d = k_cache.shape[1], q.shape[2]
    _dense_tma[(splits, q.shape[0] * heads_kv // heads)](
        q, descriptor(k_cache, tile, d), descriptor(v_cache, tile, d), table, seq_lens, out, workspace.o, workspace.ml, scale_log2,
        heads_kv, splits, table.stride(0), k_cache.stride(0) // d, k_cache.stride(1) // d, WHOLE=splits == 1,
        **meta(q, k_cache, paged, tile, heads),
    )  # fmt: skip
