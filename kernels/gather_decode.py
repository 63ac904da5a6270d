"""Sparse decode attention over the keep-set of a paged KV cache (gather decode).

Shapes: q, out [B, HQ, D]; k_cache, v_cache [pages, KV heads, page, D]; selected [B, KV heads, k] blocks; page_table [B, pages].
The keep-set of a (sequence, KV head) is its first `sink_blocks` blocks, its last `local_blocks` blocks (a partial one counts) and
the selected blocks. One program per tile of it, shared by the query heads of the KV head; a second kernel merges. Pages may lie in
pinned host memory: a page-table entry e < 0 is page ~e of the host cache, read over the link. Reference: `reference.gather_decode`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels import checks, launch, paging, partials
from kernels.dense_decode import LOG2E, check_cache


@triton.jit
def kept_block(slot, selected, i_row, n_blocks, SINK: tl.constexpr, LOCAL: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr):
    """Block in each keep-set slot, -1 where the slot is empty: sinks first, then the local blocks, then the selected."""
    local = n_blocks - LOCAL + slot - SINK
    local = tl.where((local >= SINK) & (local < n_blocks), local, -1)
    chosen = tl.load(selected + i_row * K + slot - SINK - LOCAL, mask=(slot >= SINK + LOCAL) & (slot < SLOTS), other=-1)
    # A selected block that is a sink or local one, or beyond the end, is read there or not at all, never twice.
    chosen = tl.where((chosen >= SINK) & (chosen < n_blocks - LOCAL), chosen, -1)
    sink = tl.where(slot < n_blocks, slot, -1)
    return tl.where(slot < SINK, sink, tl.where(slot < SINK + LOCAL, local, chosen))


@triton.jit
def _gather(
    q, k, v, k_host, v_host, table, lens, selected, o_parts, ml_parts, scale_log2, heads_kv, stage_page, stride_q, stride_table,
    k_p, k_h, k_t, v_p, v_h, v_t, kh_p, kh_h, kh_t, vh_p, vh_h, vh_t,
    GROUP: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    BN: tl.constexpr, SINK: tl.constexpr, LOCAL: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr,
    PAGED: tl.constexpr, TIERED: tl.constexpr,
    STAGED: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    i_p, i_row = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_row // heads_kv, i_row % heads_kv
    o_g, o_d = tl.arange(0, GP), tl.arange(0, D)
    launch.wait_for_previous(PDL)
    n = tl.load(lens + i_b)
    o_u = i_p * BN + tl.arange(0, BN)
    block = kept_block(o_u // BLOCK, selected, i_row, tl.cdiv(n, BLOCK), SINK, LOCAL, K, SLOTS)
    o_t = block * BLOCK + o_u % BLOCK
    ok = (block >= 0) & (o_t < n)
    page = i_b
    if PAGED:
        page = tl.load(table + i_b.to(tl.int64) * stride_table + o_t // PAGE, mask=ok, other=0)
        if STAGED:
            chosen = o_u // BLOCK - SINK - LOCAL
            page = tl.where(chosen >= 0, stage_page + i_b * K + chosen, page)
    p_k = paging.rows(k, page, o_t, i_h, k_p, k_h, k_t, PAGE, PAGED)
    p_v = paging.rows(v, page, o_t, i_h, v_p, v_h, v_t, PAGE, PAGED)
    if TIERED:
        on_host = page < 0
        p_k = tl.where(on_host, paging.rows(k_host, -1 - page, o_t, i_h, kh_p, kh_h, kh_t, PAGE, PAGED), p_k)
        p_v = tl.where(on_host, paging.rows(v_host, -1 - page, o_t, i_h, vh_p, vh_h, vh_t, PAGE, PAGED), p_v)
    b_k = tl.load(p_k[:, None] + o_d[None, :], mask=ok[:, None], other=0.0)
    b_v = tl.load(p_v[:, None] + o_d[None, :], mask=ok[:, None], other=0.0)
    p_q = q + i_b.to(tl.int64) * stride_q + (i_h * GROUP + o_g[:, None]) * D + o_d[None, :]
    b_q = tl.load(p_q, mask=o_g[:, None] < GROUP, other=0.0)
    s = launch.dot(b_q, tl.trans(b_k), tl.zeros([GP, BN], dtype=tl.float32), PRECISION) * scale_log2
    s = tl.where(ok[None, :], s, -float("inf"))
    b_m = tl.max(s, 1)
    p = tl.exp2(s - tl.where(b_m == -float("inf"), 0.0, b_m)[:, None])
    b_l = tl.sum(p, 1)
    b_o = launch.dot(p.to(b_v.dtype), b_v, tl.zeros([GP, D], dtype=tl.float32), PRECISION)
    partials.store(o_parts, ml_parts, i_row * tl.num_programs(0) + i_p, b_o, b_m, b_l, GROUP, GP, D)


def parts_of(k: int, block: int, sink_blocks: int, local_blocks: int, tile: int) -> int:
    """Programs per (sequence, KV head): what a `partials.Workspace` for the call must hold."""
    return triton.cdiv((k + sink_blocks + local_blocks) * block, tile)


def gather_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    selected: torch.Tensor,
    page_table: torch.Tensor | None = None,
    *,
    k_host: torch.Tensor | None = None,
    v_host: torch.Tensor | None = None,
    scale: float | None = None,
    block: int = 128,
    sink_blocks: int = 1,
    local_blocks: int = 2,
    out: torch.Tensor | None = None,
    workspace: partials.Workspace | None = None,
    stage_page: int | None = None,
    tile: int = 64,
    skip_empty: bool = False,
) -> torch.Tensor:
    """Attention of one query token per sequence over its keep-set.

    q, k_cache, v_cache, seq_lens, page_table, scale and out as in `dense_decode`, error bounds too, and the sequences of q at any
    distance. selected [B, KV heads, k] int32: distinct blocks to read besides sink and local ones, -1 for none; other entries outside
    the candidates are ignored. `block` tokens per block, a power of two from 16 to 256, independent of the page size. k_host, v_host
    [host pages, KV heads, page, D]: pinned host pages, named by table entries < 0. `stage_page`: read selected block j of sequence b
    from page stage_page + b k + j of the device cache, where `host_gather.stage` put it. `tile` tokens per program. `skip_empty` leaves
    the rows of `out` of sequences of length 0 as they are.

    Returns [B, HQ, D] in q's dtype. Raises `ValueError` naming a bad argument.
    """
    heads_kv, capacity = check_cache(q, k_cache, v_cache, seq_lens, page_table, apart=True)
    batch, heads_q, d = q.shape
    group, rows = heads_q // heads_kv, batch * heads_kv
    checks.block_tokens(block, "block")
    checks.block_tokens(tile, "tile")
    checks.at_least("sink_blocks", sink_blocks, 0)
    checks.at_least("local_blocks", local_blocks, 1)
    checks.tensor("selected", selected, [batch, heads_kv, None], [torch.int32], q, contiguous=True)
    k = selected.shape[2]
    if k > triton.cdiv(capacity, block):
        raise ValueError(f"selected: {k} blocks, but a sequence has at most {triton.cdiv(capacity, block)}")
    if stage_page is not None and (page_table is None or block != k_cache.shape[2]):
        raise ValueError("stage_page: needs a page table and blocks of one page")
    if stage_page is not None and not 0 <= stage_page <= k_cache.shape[0] - batch * k:
        raise ValueError(f"stage_page: {batch * k} pages from {stage_page} do not fit a cache of {k_cache.shape[0]}")
    tiered = k_host is not None or v_host is not None
    if k_host is not None or v_host is not None:
        if page_table is None:
            raise ValueError("page_table: host pages need one")
        shape = [None, heads_kv, k_cache.shape[2], d]
        k_host = checks.tensor("k_host", k_host, shape, [q.dtype], q, pinned=True)
        v_host = checks.tensor("v_host", v_host, list(k_host.shape), [q.dtype], q, pinned=True)
    else:
        k_host, v_host = k_cache, v_cache
    slots, parts = sink_blocks + local_blocks + k, parts_of(k, block, sink_blocks, local_blocks, tile)
    out = (
        torch.empty_like(q, memory_format=torch.contiguous_format)
        if out is None
        else checks.tensor("out", out, q.shape, [q.dtype], q, contiguous=True)
    )
    if workspace is None:
        workspace = partials.Workspace.allocate(rows, parts, group, d, q.device)
    workspace.check(rows, parts, group, d, q)
    table = seq_lens if page_table is None else page_table
    _gather[(parts, rows)](
        q, k_cache, v_cache, k_host, v_host, table, seq_lens, selected, workspace.o, workspace.ml,
        checks.softmax_scale(scale, d) * LOG2E, heads_kv, 0 if stage_page is None else stage_page, q.stride(0), table.stride(0),
        *k_cache.stride()[:3], *v_cache.stride()[:3], *k_host.stride()[:3], *v_host.stride()[:3],
        GROUP=group, GP=max(16, triton.next_power_of_2(group)), D=d,
        PAGE=k_cache.shape[2], BLOCK=block, BN=tile, SINK=sink_blocks, LOCAL=local_blocks, K=k, SLOTS=slots,
        PAGED=page_table is not None, TIERED=tiered, STAGED=stage_page is not None,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=2, **launch.options(),
    )  # fmt: skip
    partials.merge(workspace, out, rows, parts, group, skip_empty)
    return out
