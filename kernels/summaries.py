"""Block summaries for KV block selection: per-channel bounds of the keys of a block, kept incrementally.

Shapes: data [B, KV heads, blocks, 2, D], lowest and highest key per channel of each block of `block` tokens.
minmax: exact for bf16 keys, 4 D bytes a block; float16 and float32 caches keep their dtype. minmax_fp8: rounded outward to e4m3 at a
power-of-two scale per block, so a bound stays a bound, 2 D + 4 bytes. `build` summarises a whole cache (after prefill); `append`
writes one new token per sequence into the cache and updates the summary of its block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels import checks, launch, paging

KINDS = ("minmax", "minmax_fp8")
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Summaries:
    """data [B, KV heads, blocks, 2, D]: low and high; scale [B, KV heads, blocks] float32, fp8 only; running [B, KV heads, 2, D]
    float32: low and high of the block that is being filled.
    """

    kind: str
    block: int
    data: torch.Tensor
    scale: torch.Tensor | None
    running: torch.Tensor

    @property
    def blocks(self) -> int:
        return self.data.shape[2]

    @property
    def raw(self) -> torch.Tensor:
        """The data as kernels take them: e4m3 as bytes, which every GPU can load."""
        return self.data if self.scale is None else self.data.view(torch.uint8)

    @property
    def bytes_per_block(self) -> int:
        """Bytes a scan reads per block and KV head."""
        return self.data[0, 0, 0].numel() * self.data.element_size() + (0 if self.scale is None else 4)

    def dequantised(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Low and high as float32 [B, KV heads, blocks, D]: the scores are defined on these."""
        low, high = zip(*(self.dequantised_row(b) for b in range(self.data.shape[0])), strict=True)
        return torch.stack(low), torch.stack(high)

    def dequantised_row(self, i_b: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same of one sequence: [KV heads, blocks, D] each."""
        data = self.data[i_b].float()
        if self.scale is not None:
            data = data * self.scale[i_b, :, :, None, None]
        return data[:, :, 0], data[:, :, -1]


def allocate(
    batch: int, heads_kv: int, blocks: int, d: int, *, kind: str, dtype: torch.dtype, device: torch.device | str, block: int = 128
) -> Summaries:
    """Empty summaries for sequences of up to `blocks` blocks."""
    if kind not in KINDS:
        raise ValueError(f"kind: {kind!r} is not one of {', '.join(KINDS)}")
    checks.block_tokens(block, "block")
    fp8 = kind == "minmax_fp8"
    data = torch.zeros(batch, heads_kv, blocks, 2, d, dtype=FP8 if fp8 else dtype, device=device)
    scale = torch.zeros(batch, heads_kv, blocks, dtype=torch.float32, device=device) if fp8 else None
    return Summaries(kind, block, data, scale, torch.zeros(batch, heads_kv, 2, d, dtype=torch.float32, device=device))


@triton.jit
def _round_outward(x, UP: tl.constexpr):
    """x float32 (|x| <= 448) as the byte of an e4m3, rounded up where UP, else down; by integer arithmetic, exact in every case."""
    negative = x < 0
    y = tl.abs(x)
    away = negative != UP
    bits = y.to(tl.int32, bitcast=True)
    # Normal numbers keep 3 of 23 mantissa bits (a carry moves to the exponent by itself); below 2^-6 steps are 2^-9.
    normal = (tl.where(away, bits + 0xFFFFF, bits) >> 20) - (120 << 3)
    scaled = y * 512.0
    small = tl.where(away, tl.ceil(scaled), tl.floor(scaled)).to(tl.int32)
    code = tl.where(y < 0.015625, small, normal) | tl.where(negative, 128, 0)
    return code.to(tl.uint8)


@triton.jit
def widened(code):
    """Bytes of e4m3 values as float16, exactly, on cards without an instruction for it: exponents differ by 8."""
    wide = code.to(tl.int16)
    return (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0


@triton.jit
def store_summary(data, scale, i_block, low, high, D: tl.constexpr, KIND: tl.constexpr):
    """Write the summary of block `i_block` (flat over B, KV heads, blocks): low and high [D]."""
    o_d = tl.arange(0, D)
    if KIND == 1:
        most = tl.max(tl.maximum(tl.abs(low), tl.abs(high)), 0)
        # The power of two that brings the largest value into (224, 448]; 1 for a block of zeros.
        s = tl.exp2(tl.ceil(tl.log2(tl.where(most > 0, most, 448.0) / 448.0)))
        s = tl.where(most > s * 448.0, s * 2.0, s)
        tl.store(data + i_block * 2 * D + o_d, _round_outward(low / s, False))
        tl.store(data + i_block * 2 * D + D + o_d, _round_outward(high / s, True))
        tl.store(scale + i_block, s)
    else:
        tl.store(data + i_block * 2 * D + o_d, low.to(data.dtype.element_ty))
        tl.store(data + i_block * 2 * D + D + o_d, high.to(data.dtype.element_ty))


@triton.jit
def _build(
    k, table, lens, data, scale, running, heads_kv, blocks, stride_table, k_p, k_h, k_t,
    D: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, PAGED: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    i_block, i_row = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_row // heads_kv, i_row % heads_kv
    n = tl.load(lens + i_b)
    if i_block * BLOCK < n:
        o_d = tl.arange(0, D)
        o_t = i_block * BLOCK + tl.arange(0, BLOCK)
        ok = (o_t < n)[:, None]
        page = paging.pages(table, i_b, stride_table, i_block * BLOCK, o_t, n, PAGE, BLOCK, PAGED)
        p_k = paging.rows(k, page, o_t, i_h, k_p, k_h, k_t, PAGE, PAGED)
        b_k = tl.load(p_k[:, None] + o_d[None, :], mask=ok, other=0.0).to(tl.float32)
        low = tl.min(tl.where(ok, b_k, float("inf")), 0)
        high = tl.max(tl.where(ok, b_k, -float("inf")), 0)
        flat = i_row.to(tl.int64) * blocks + i_block
        store_summary(data, scale, flat, low, high, D, KIND)
        if (i_block + 1) * BLOCK >= n:
            p_run = running + i_row.to(tl.int64) * 2 * D + o_d
            tl.store(p_run, low)
            tl.store(p_run + D, high)


@triton.jit
def update_summary(data, scale, running, i_row, pos, x, blocks, D: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """Include key x [D] float32 at position `pos` of row `i_row` in the summary of its block."""
    o_d = tl.arange(0, D)
    p_run = running + i_row.to(tl.int64) * 2 * D + o_d
    fresh = pos % BLOCK == 0
    first, second = tl.load(p_run), tl.load(p_run + D)
    low = tl.where(fresh, x, tl.minimum(first, x))
    high = tl.where(fresh, x, tl.maximum(second, x))
    tl.store(p_run, low)
    tl.store(p_run + D, high)
    flat = i_row.to(tl.int64) * blocks + pos // BLOCK
    store_summary(data, scale, flat, low, high, D, KIND)


@triton.jit
def _append(
    new_k, new_v, k, v, table, lens, data, scale, running, heads_kv, blocks, stride_table, k_p, k_h, k_t, v_p, v_h, v_t,
    D: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, PAGED: tl.constexpr, KIND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    i_row = tl.program_id(0)
    i_b, i_h = i_row // heads_kv, i_row % heads_kv
    launch.wait_for_previous(PDL)
    o_d = tl.arange(0, D)
    pos = tl.load(lens + i_b) - 1
    b_k = tl.load(new_k + i_row.to(tl.int64) * D + o_d)
    b_v = tl.load(new_v + i_row.to(tl.int64) * D + o_d)
    page = paging.pages(table, i_b, stride_table, pos, pos, pos + 1, PAGE, 1, PAGED)
    tl.store(paging.rows(k, page, pos, i_h, k_p, k_h, k_t, PAGE, PAGED) + o_d, b_k)
    tl.store(paging.rows(v, page, pos, i_h, v_p, v_h, v_t, PAGE, PAGED) + o_d, b_v)
    update_summary(data, scale, running, i_row, pos, b_k.to(tl.float32), blocks, D, BLOCK, KIND)


def _check(summaries: Summaries, k_cache: torch.Tensor, seq_lens: torch.Tensor, page_table: torch.Tensor | None) -> torch.Tensor:
    batch, heads_kv, _, _, d = summaries.data.shape
    checks.tensor("k_cache", k_cache, [None, heads_kv, None, d], checks.FLOATS, summaries.data)
    checks.pairs("summaries", batch, heads_kv)
    checks.head_dim(d, "k_cache")
    checks.tensor("seq_lens", seq_lens, [batch], [torch.int32], k_cache)
    if page_table is None:
        if k_cache.shape[0] != batch:
            raise ValueError(f"k_cache: {k_cache.shape[0]} sequences for a batch of {batch}; a paged cache needs page_table")
        return seq_lens
    checks.block_tokens(k_cache.shape[2], "k_cache page")
    return checks.tensor("page_table", page_table, [batch, None], [torch.int32], k_cache)


def build(summaries: Summaries, k_cache: torch.Tensor, seq_lens: torch.Tensor, page_table: torch.Tensor | None = None) -> Summaries:
    """Fill `summaries` from k_cache [pages, KV heads, page, D] (or contiguous [B, KV heads, N, D]) and seq_lens [B] int32."""
    table = _check(summaries, k_cache, seq_lens, page_table)
    batch, heads_kv, blocks, _, d = summaries.data.shape
    _build[(blocks, batch * heads_kv)](
        k_cache, table, seq_lens, summaries.raw, _or(summaries.scale, seq_lens), summaries.running, heads_kv, blocks,
        table.stride(0), *k_cache.stride()[:3], D=d, PAGE=k_cache.shape[2], BLOCK=summaries.block,
        PAGED=page_table is not None, KIND=KINDS.index(summaries.kind), num_warps=4,
    )  # fmt: skip
    return summaries


def append(
    summaries: Summaries,
    new_k: torch.Tensor,
    new_v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor | None = None,
) -> None:
    """Append new_k, new_v [B, KV heads, D] as token seq_lens - 1 of each sequence (seq_lens counts it) and summarise it."""
    table = _check(summaries, k_cache, seq_lens, page_table)
    batch, heads_kv, blocks, _, d = summaries.data.shape
    checks.tensor("new_k", new_k, [batch, heads_kv, d], [k_cache.dtype], k_cache, contiguous=True)
    checks.tensor("new_v", new_v, [batch, heads_kv, d], [k_cache.dtype], k_cache, contiguous=True)
    checks.tensor("v_cache", v_cache, list(k_cache.shape), [k_cache.dtype], k_cache)
    _append[(batch * heads_kv,)](
        new_k, new_v, k_cache, v_cache, table, seq_lens, summaries.raw, _or(summaries.scale, seq_lens), summaries.running,
        heads_kv, blocks, table.stride(0), *k_cache.stride()[:3], *v_cache.stride()[:3], D=d, PAGE=k_cache.shape[2],
        BLOCK=summaries.block, PAGED=page_table is not None, KIND=KINDS.index(summaries.kind), num_warps=4,
        **launch.options(),
    )  # fmt: skip


def _or(x: torch.Tensor | None, stand_in: torch.Tensor) -> torch.Tensor:
    """A pointer argument the kernel does not use still has to be a tensor."""
    return stand_in if x is None else x
