"""Paged KV addressing, shared by every attention kernel.

Shapes: cache [pages, KV heads, page, D], any strides (the last one 1); page table [B, pages per sequence] int32.
With two tiers an entry e >= 0 is page e of the device cache, e < 0 is page ~e of the host cache. Without a table, page b holds
sequence b (contiguous KV). Offsets are 64-bit: a cache may hold more than 2^31 elements.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pages(table, i_b, stride_table, t_first, o_t, n, PAGE: tl.constexpr, BN: tl.constexpr, PAGED: tl.constexpr):
    """Table entries of tokens `o_t` = t_first + [0, BN) that are below `n`: a scalar where one page covers the tile."""
    page = i_b
    if PAGED:
        row = table + i_b.to(tl.int64) * stride_table
        if PAGE >= BN:
            page = tl.load(row + t_first // PAGE, mask=t_first < n, other=0)
        else:
            page = tl.load(row + o_t // PAGE, mask=o_t < n, other=0)
    return page


@triton.jit
def rows(cache, page, o_t, i_h, stride_p, stride_h, stride_t, PAGE: tl.constexpr, PAGED: tl.constexpr):
    """Pointers to the first channel of tokens `o_t` [n] of KV head `i_h`, whose table entries are `page`."""
    if PAGED:
        o_t = o_t % PAGE
    return cache + page.to(tl.int64) * stride_p + i_h.to(tl.int64) * stride_h + o_t.to(tl.int64) * stride_t
