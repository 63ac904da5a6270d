"""Block summaries beside an engine's paged cache: of each page and KV head the per-channel bounds of its keys, once the page is full.

Shapes: data [pages, KV heads, 2, D], lowest and highest key per channel; a block is a page. Kinds and rounding as in `summaries`.
A summary belongs to the page, not to a sequence: sequences that share a prefix share it, a page that another sequence fills anew is
summarised anew, and what a preempted sequence leaves stays true as long as the page keeps its keys. Each is read off the cache when the
last token of its page is written; a selection never reads that of a page that is not full.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels import checks, launch
from kernels.summaries import FP8, KINDS, store_summary


@dataclass(frozen=True)
class PageSummaries:
    """data [pages, KV heads, 2, D]: low and high; scale [pages, KV heads] float32, fp8 only."""

    kind: str
    block: int
    data: torch.Tensor
    scale: torch.Tensor | None

    @property
    def raw(self) -> torch.Tensor:
        """The data as kernels take them: e4m3 as bytes, which every GPU can load."""
        return self.data if self.scale is None else self.data.view(torch.uint8)

    def dequantised(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Low and high as float32 [pages, KV heads, D]: the scores are defined on these."""
        data = self.data.float()
        if self.scale is not None:
            data = data * self.scale[:, :, None, None]
        return data[:, :, 0], data[:, :, 1]


def allocate(k_cache: torch.Tensor, kind: str) -> PageSummaries:
    """Room for the summaries of k_cache [pages, KV heads, page, D]; what is in it says nothing before the page has been filled."""
    if kind not in KINDS:
        raise ValueError(f"kind: {kind!r} is not one of {', '.join(KINDS)}")
    checks.tensor("k_cache", k_cache, [None, None, None, None], checks.FLOATS)
    pages, heads, page, d = k_cache.shape
    checks.block_tokens(page, "k_cache page")
    checks.head_dim(d, "k_cache")
    fp8 = kind == "minmax_fp8"
    data = torch.empty(pages, heads, 2, d, dtype=FP8 if fp8 else k_cache.dtype, device=k_cache.device)
    scale = torch.empty(pages, heads, dtype=torch.float32, device=k_cache.device) if fp8 else None
    return PageSummaries(kind, page, data, scale)


@triton.jit
def _filled(
    k, table, starts, lens, data, scale, heads_kv, stride_table, k_p, k_h, k_t,
    D: tl.constexpr, PAGE: tl.constexpr, KIND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (j, row): the j-th page that the new tokens of a sequence touch, if they filled it."""
    i_j, i_row = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_row // heads_kv, i_row % heads_kv
    launch.wait_for_previous(PDL)
    n = tl.load(lens + i_b)
    new = tl.load(starts + i_b + 1) - tl.load(starts + i_b)
    block = (n - new) // PAGE + i_j
    if (new > 0) & ((block + 1) * PAGE <= n):
        o_t, o_d = tl.arange(0, PAGE), tl.arange(0, D)
        page = tl.load(table + i_b.to(tl.int64) * stride_table + block).to(tl.int64)
        p_k = k + page * k_p + i_h.to(tl.int64) * k_h + o_t.to(tl.int64)[:, None] * k_t + o_d[None, :]
        b_k = tl.load(p_k).to(tl.float32)
        store_summary(data, scale, page * heads_kv + i_h, tl.min(b_k, 0), tl.max(b_k, 0), D, KIND)


def update(
    summaries: PageSummaries,
    k_cache: torch.Tensor,
    page_table: torch.Tensor,
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    max_new: int,
) -> None:
    """Summarise the pages that the newest tokens filled; they are in the cache already.

    k_cache [pages, KV heads, page, D], any strides; page_table [B, pages] int32; query_starts [B + 1] int32, running sums of the new
    tokens by sequence; seq_lens [B] int32, all tokens of each, the new ones included; `max_new`: the most new tokens of any. Sequences
    without new tokens are left alone. `ValueError` naming a bad argument.
    """
    pages, heads, _, d = summaries.data.shape
    checks.tensor("k_cache", k_cache, [pages, heads, summaries.block, d], checks.FLOATS, summaries.data)
    batch = seq_lens.shape[0]
    checks.tensor("seq_lens", seq_lens, [None], [torch.int32], k_cache)
    checks.tensor("query_starts", query_starts, [batch + 1], [torch.int32], k_cache)
    checks.tensor("page_table", page_table, [batch, None], [torch.int32], k_cache)
    checks.at_least("max_new", max_new, 1)
    scale = seq_lens if summaries.scale is None else summaries.scale
    touched = triton.cdiv(max_new - 1, summaries.block) + 1
    _filled[(touched, checks.pairs("seq_lens", batch, heads))](
        k_cache, page_table, query_starts, seq_lens, summaries.raw, scale, heads, page_table.stride(0), *k_cache.stride()[:3],
        D=d, PAGE=summaries.block, KIND=KINDS.index(summaries.kind), num_warps=4, **launch.options(),
    )  # fmt: skip


def build(summaries: PageSummaries, k_cache: torch.Tensor) -> None:
    """Summarise every page of the cache as if it were full: for contexts that were put there and not computed."""
    pages = k_cache.shape[0]
    every = torch.arange(pages, dtype=torch.int32, device=k_cache.device)
    for first in range(0, pages, 4096):  # a launch holds 65535 pairs of sequence and head
        table = every[first : first + 4096, None]
        full = torch.full((table.shape[0],), summaries.block, dtype=torch.int32, device=k_cache.device)
        starts = torch.arange(table.shape[0] + 1, dtype=torch.int32, device=k_cache.device) * summaries.block
        update(summaries, k_cache, table, starts, full, summaries.block)
