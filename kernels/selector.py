"""Block selection for sparse attention: score every KV block from its summary, take the top k.

Shapes: q [B, HQ, D]; summaries [B, KV heads, blocks, 2, D], or [pages, KV heads, 2, D] found by a page table [B, blocks]; selected
[B, KV heads, k] int32, best first.
Score of a block for a KV head: sum_d max(q_d low_d, q_d high_d), an upper bound of q.key over the block's keys, the largest over the
query heads that share it. It is computed as max(q, 0).high + min(q, 0).low on the tensor cores. fp8 summaries are scored as stored.

Two kernels. `_score`: one chunk of blocks a program; stores one float32 per block and the best sort key of the chunk, which orders
by score, then by lower block. `_pick`: the k best chunks, then the k best blocks of those. That is exact: a block of any other chunk
is beaten by the best block of each of the k. Candidates are full blocks between the first `sink_blocks` and the last `local_blocks`,
which are always read. `SCORE_BOUND` bounds |score - float64 score| over the largest |score|. Reference: `reference.top_blocks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import triton
import triton.language as tl

from kernels import checks, launch
from kernels.page_summaries import PageSummaries
from kernels.summaries import KINDS, Summaries, widened

SCORE_BOUND = {torch.bfloat16: 1e-4, torch.float16: 1e-4, torch.float32: 1e-4, torch.float8_e4m3fn: 1e-4}
NONE = tl.constexpr(-9223372036854775807)  # below the key of any score


@dataclass(frozen=True)
class SelectorWorkspace:
    """scores [rows, blocks] float32 and keys [rows, chunks] int64, for calls of this shape or smaller on one stream."""

    scores: torch.Tensor
    keys: torch.Tensor

    @classmethod
    def allocate(cls, rows: int, blocks: int, chunk: int, device: torch.device | str) -> SelectorWorkspace:
        return cls(
            torch.empty(rows * blocks, dtype=torch.float32, device=device),
            torch.empty(rows * triton.cdiv(blocks, chunk), dtype=torch.int64, device=device),
        )


@triton.jit
def _sort_key(score, index):
    """int64 that orders by score, then by lower index."""
    bits = score.to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (bits.to(tl.int64) << 32) | (0xFFFFFFFF - index.to(tl.int64))


@triton.jit
def _index(key):
    """The block index in a sort key."""
    return (0xFFFFFFFF - (key & 0xFFFFFFFF)).to(tl.int32)


@triton.jit
def _score(
    q, data, scale, table, lens, scores, keys, heads_kv, blocks, chunks, stride_q, stride_table,
    GROUP: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, SINK: tl.constexpr,
    LOCAL: tl.constexpr, KIND: tl.constexpr, WIDEN: tl.constexpr, PAGED: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    i_c, i_row = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_row // heads_kv, i_row % heads_kv
    o_d, o_g = tl.arange(0, D), tl.arange(0, GP)
    launch.wait_for_previous(PDL)
    last_block = tl.cdiv(tl.load(lens + i_b), BLOCK) - LOCAL
    o_block = i_c * CHUNK + tl.arange(0, CHUNK)
    ok = (o_block >= SINK) & (o_block < last_block)
    best = tl.full([], NONE, dtype=tl.int64)
    if i_c * CHUNK < last_block:
        p_q = q + i_b.to(tl.int64) * stride_q + (i_h * GROUP + o_g[None, :]) * D + o_d[:, None]
        b_q = tl.load(p_q, mask=o_g[None, :] < GROUP, other=0.0)
        if KIND == 1:
            # e4m3 is exact in float16; the query is brought below 1 by a power of two first, so that it fits float16 too.
            most = tl.max(tl.max(tl.abs(b_q.to(tl.float32)), 1), 0)
            q_scale = tl.exp2(tl.ceil(tl.log2(tl.where(most > 0, most, 1.0))))
            b_q = (b_q.to(tl.float32) / q_scale).to(tl.float16)
        at = i_row.to(tl.int64) * blocks + o_block
        flat = at
        if PAGED:
            flat = tl.load(table + i_b.to(tl.int64) * stride_table + o_block, mask=ok, other=0).to(tl.int64) * heads_kv + i_h
        p_low = data + flat[:, None] * 2 * D + o_d[None, :]
        b_low = tl.load(p_low, mask=ok[:, None], other=0.0)
        b_high = tl.load(p_low + D, mask=ok[:, None], other=0.0)
        if WIDEN:
            b_low, b_high = widened(b_low), widened(b_high)
        b_low, b_high = b_low.to(b_q.dtype), b_high.to(b_q.dtype)
        wide = b_q.to(tl.float32)
        b_minus, b_plus = tl.minimum(wide, 0.0).to(b_q.dtype), tl.maximum(wide, 0.0).to(b_q.dtype)
        s = launch.dot(b_low, b_minus, tl.zeros([CHUNK, GP], dtype=tl.float32), PRECISION)
        s = launch.dot(b_high, b_plus, s, PRECISION)
        score = tl.max(tl.where(o_g[None, :] < GROUP, s, -float("inf")), 1)
        if KIND == 1:
            score = score * tl.load(scale + flat, mask=ok, other=0.0) * q_scale
        tl.store(scores + at, score, mask=ok)
        best = tl.max(tl.where(ok, _sort_key(score, o_block), NONE), 0)
    tl.store(keys + i_row * chunks + i_c, best)


@triton.jit
def _pick(
    lens, scores, keys, selected, heads_kv, blocks, chunks,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, CHUNKS_P2: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
    SINK: tl.constexpr, LOCAL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    i_row = tl.program_id(0)
    o_c, o_k = tl.arange(0, CHUNKS_P2), tl.arange(0, KP)
    launch.wait_for_previous(PDL)
    last_block = tl.cdiv(tl.load(lens + i_row // heads_kv), BLOCK) - LOCAL
    p_selected = selected + i_row.to(tl.int64) * K + o_k
    if last_block <= SINK:  # nothing to sort: in a server most rows of a padded batch, and all of short sequences
        tl.store(p_selected, tl.full([KP], -1, dtype=tl.int32), mask=o_k < K)
    else:
        b_key = tl.load(keys + i_row * chunks + o_c, mask=o_c < chunks, other=NONE)
        best = tl.topk(b_key, KP)
        chunk = _index(best) // CHUNK
        o_block = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
        ok = (best != NONE)[:, None] & (o_block >= SINK) & (o_block < last_block)
        score = tl.load(scores + i_row.to(tl.int64) * blocks + o_block, mask=ok, other=0.0)
        b_key = tl.reshape(tl.where(ok, _sort_key(score, o_block), NONE), [KP * CHUNK])
        final = tl.topk(b_key, KP)
        tl.store(p_selected, tl.where(final == NONE, -1, _index(final)), mask=o_k < K)


def select(
    q: torch.Tensor,
    summaries: Summaries | PageSummaries,
    seq_lens: torch.Tensor,
    k: int,
    page_table: torch.Tensor | None = None,
    *,
    sink_blocks: int = 1,
    local_blocks: int = 2,
    out: torch.Tensor | None = None,
    scores: torch.Tensor | None = None,
    workspace: SelectorWorkspace | None = None,
    chunk: int = 64,
) -> torch.Tensor:
    """The k best candidate blocks of every (sequence, KV head): [B, KV heads, k] int32, best first, -1 where there are fewer.

    q [B, HQ, D], the heads of a sequence together; summaries of the same batch, heads and D, or of pages, with page_table [B, blocks]
    int32; seq_lens [B] int32, tokens in the cache. `scores` [B, KV heads, blocks] float32 receives the scores of the candidates (others
    are left as they are). `chunk` blocks per program (a power of two from 16); k from 1 to 128 and no more than `summaries.blocks`.
    `ValueError` naming the argument on bad input.
    """
    checks.query(q)
    batch, heads_q, d = q.shape
    paged, kinds = isinstance(summaries, PageSummaries), [*checks.FLOATS, torch.float8_e4m3fn]
    if paged != (page_table is not None):
        raise ValueError("page_table: summaries of pages need one, those of sequences none")
    leading: list[int | None] = [None, None] if paged else [batch, None, None]
    checks.tensor("summaries", summaries.data, [*leading, 2, d], kinds, q, contiguous=True)
    heads_kv = summaries.data.shape[1]
    if page_table is not None:
        checks.tensor("page_table", page_table, [batch, None], [torch.int32], q)
    blocks = cast("Summaries", summaries).blocks if page_table is None else page_table.shape[1]
    if summaries.scale is None and summaries.data.dtype != q.dtype:
        raise ValueError(f"summaries: {summaries.data.dtype} for a {q.dtype} query")
    group = checks.head_group(heads_q, heads_kv)
    checks.head_dim(d)
    checks.tensor("seq_lens", seq_lens, [batch], [torch.int32], q)
    if checks.at_least("k", k, 1) > min(blocks, 128):
        raise ValueError(f"k: {k} blocks of {blocks} (at most 128)")
    checks.at_least("sink_blocks", sink_blocks, 0)
    checks.at_least("local_blocks", local_blocks, 1)
    if not checks.is_power_of_two(chunk) or chunk < 16:
        raise ValueError(f"chunk: {chunk} is not a power of two from 16 up")
    # fp8 values are converted in registers: fewer warps leave each more of them in flight. Measured on an H100.
    num_warps = 2 if summaries.scale is not None else 4
    rows, chunks = checks.pairs("q", batch, heads_kv), triton.cdiv(blocks, chunk)
    shape = [batch, heads_kv, k]
    out = q.new_empty(shape, dtype=torch.int32) if out is None else checks.tensor("out", out, shape, [torch.int32], q, contiguous=True)
    if scores is not None:
        checks.tensor("scores", scores, [batch, heads_kv, blocks], [torch.float32], q, contiguous=True)
    work = SelectorWorkspace.allocate(rows, blocks, chunk, q.device) if workspace is None else workspace
    if work.keys.numel() < rows * chunks or work.scores.numel() < rows * blocks:
        raise ValueError(f"workspace: holds {work.scores.numel()} scores, the call needs {rows * blocks} in {rows * chunks} chunks")
    scores = work.scores if scores is None else scores
    widen = summaries.scale is not None and not launch.converts_e4m3()
    _score[(chunks, rows)](
        q, summaries.raw if widen else summaries.data, seq_lens if summaries.scale is None else summaries.scale,
        seq_lens if page_table is None else page_table, seq_lens, scores, work.keys, heads_kv, blocks, chunks, q.stride(0),
        0 if page_table is None else page_table.stride(0),
        GROUP=group, GP=max(16, triton.next_power_of_2(group)), D=d, BLOCK=summaries.block, CHUNK=chunk,
        SINK=sink_blocks, LOCAL=local_blocks, KIND=KINDS.index(summaries.kind), WIDEN=widen, PAGED=paged,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=num_warps, **launch.options(),
    )  # fmt: skip
    k_padded = max(2, triton.next_power_of_2(k))  # the compiler's top-k leaves no tensor for one
    _pick[(rows,)](
        seq_lens, scores, work.keys, out, heads_kv, blocks, chunks, BLOCK=summaries.block, CHUNK=chunk,
        CHUNKS_P2=max(triton.next_power_of_2(chunks), k_padded), K=k, KP=k_padded,
        SINK=sink_blocks, LOCAL=local_blocks,
        num_warps=4, **launch.options(),
    )  # fmt: skip
    return out
