"""Staged gather of selected KV blocks from pinned host memory to device pages.

Shapes: k_host, v_host [host pages, KV heads, page, D]; k_cache, v_cache [pages, KV heads, page, D]; selected [B, KV heads, k].
Two ways to attend to host KV. Zero-copy: `gather_decode` reads host pages over the link. Staged: `stage` copies the selected blocks
into spare device pages, on any stream, and `gather_decode(stage_page=...)` reads them there. Both move 2 k block D KV heads itemsize
bytes per sequence and layer over the link. Within one layer of one sequence nothing hides the link: the selection needs its query.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels import checks, launch, paging


@triton.jit
def _stage(
    k_host, v_host, table, selected, k, v, rows, heads_kv, stage_page, stride_table, kh_p, kh_h, kh_t, vh_p, vh_h, vh_t,
    k_p, k_h, k_t, v_p, v_h, v_t,
    D: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr, K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    o_d = tl.arange(0, D)
    launch.wait_for_previous(PDL)
    for item in range(tl.program_id(0), rows * K * (PAGE // BN), tl.num_programs(0)):
        i_k, i_row = item // (PAGE // BN) % K, item // (PAGE // BN) // K
        i_b, i_h = i_row // heads_kv, i_row % heads_kv
        o_t = item % (PAGE // BN) * BN + tl.arange(0, BN)
        block = tl.load(selected + i_row * K + i_k)
        entry = tl.load(table + i_b.to(tl.int64) * stride_table + block, mask=block >= 0, other=0)
        if entry < 0:
            page = -1 - entry
            to = stage_page + i_b * K + i_k
            b_k = tl.load(paging.rows(k_host, page, o_t, i_h, kh_p, kh_h, kh_t, PAGE, True)[:, None] + o_d[None, :])
            b_v = tl.load(paging.rows(v_host, page, o_t, i_h, vh_p, vh_h, vh_t, PAGE, True)[:, None] + o_d[None, :])
            tl.store(paging.rows(k, to, o_t, i_h, k_p, k_h, k_t, PAGE, True)[:, None] + o_d[None, :], b_k)
            tl.store(paging.rows(v, to, o_t, i_h, v_p, v_h, v_t, PAGE, True)[:, None] + o_d[None, :], b_v)


def stage(
    k_host: torch.Tensor,
    v_host: torch.Tensor,
    page_table: torch.Tensor,
    selected: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    stage_page: int,
    *,
    tile: int = 32,
    programs: int | None = None,
) -> None:
    """Copy selected block j of sequence b, for each KV head its own, into page stage_page + b k + j of the device cache.

    k_host, v_host [host pages, KV heads, page, D] pinned; k_cache, v_cache [pages, KV heads, page, D]; page_table [B, pages] int32,
    whose selected entries are all < 0 (page ~e of the host); selected [B, KV heads, k] int32, -1 for none; a block is a page.
    `tile` tokens at a time. `programs` (default: one per tile) bounds the multiprocessors taken from concurrent work: 16 fill the link.
    Raises `ValueError` naming a bad argument.
    """
    checks.tensor("selected", selected, [None, None, None], [torch.int32], contiguous=True)
    batch, heads, k = selected.shape
    checks.tensor("k_cache", k_cache, [None, heads, None, None], checks.FLOATS, selected)
    page, d = k_cache.shape[2:]
    checks.tensor("v_cache", v_cache, list(k_cache.shape), [k_cache.dtype], selected)
    checks.tensor("k_host", k_host, [None, heads, page, d], [k_cache.dtype], selected, pinned=True)
    checks.tensor("v_host", v_host, list(k_host.shape), [k_cache.dtype], selected, pinned=True)
    checks.tensor("page_table", page_table, [batch, None], [torch.int32], selected)
    if not 0 <= stage_page <= k_cache.shape[0] - batch * k:
        raise ValueError(f"stage_page: {batch * k} pages from {stage_page} do not fit a cache of {k_cache.shape[0]}")
    if not checks.is_power_of_two(tile) or tile > page:
        raise ValueError(f"tile: {tile} is not a power of two up to the page of {page} tokens")
    items = page // tile * k * batch * heads
    programs = items if programs is None else min(items, checks.at_least("programs", programs, 1))
    _stage[(programs,)](
        k_host, v_host, page_table, selected, k_cache, v_cache, batch * heads, heads, stage_page, page_table.stride(0),
        *k_host.stride()[:3], *v_host.stride()[:3], *k_cache.stride()[:3], *v_cache.stride()[:3],
        D=d, PAGE=page, BN=tile, K=k, num_warps=4, **launch.options(),
    )  # fmt: skip
