"""Kernels of a decode step besides attention: embedding, fused linear layers, rotary embedding with KV append.

Shapes: activations x [B, H]; weights [N, K], rows are outputs. All are bound by the bytes of their weights, so for one sequence
norms, biases, gates, residuals and the argmax are fused with the product. Activations have the weights' dtype, sums are float32.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernels import launch, paging
from kernels.selector import NONE, _sort_key
from kernels.summaries import KINDS, Summaries, update_summary


@triton.jit
def _one(
    x, w, bias, norm, residual, y, best, n_rows, eps,
    K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    GATED: tl.constexpr, ARGMAX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One sequence: y [N] = epilogue(norm(x) w^T), x [K], w [N, K] (GATED: [2 N, K], gate rows then up rows).

    The norm's factor is one number, so it is applied after the sum; its sum of squares rides along.
    """
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    real = o_n < n_rows
    w_rows = w + o_n.to(tl.int64)[:, None] * K
    up_rows = w_rows + n_rows.to(tl.int64) * K
    launch.wait_for_previous(PDL)
    acc = tl.zeros([BN, BK], dtype=tl.float32)
    up = tl.zeros([BN, BK], dtype=tl.float32)
    squares = tl.zeros([BK], dtype=tl.float32)
    for k in range(0, K, BK):
        o_k = k + tl.arange(0, BK)
        ok = o_k < K
        ok_w = real[:, None] & ok[None, :]
        b_w = tl.load(w_rows + o_k[None, :], mask=ok_w, other=0.0, eviction_policy="evict_first")
        b_x = tl.load(x + o_k, mask=ok, other=0.0).to(tl.float32)
        if NORM:
            squares += b_x * b_x
            b_x = b_x * tl.load(norm + o_k, mask=ok, other=0.0).to(tl.float32)
        acc += b_w.to(tl.float32) * b_x[None, :]
        if GATED:
            b_up = tl.load(up_rows + o_k[None, :], mask=ok_w, other=0.0, eviction_policy="evict_first")
            up += b_up.to(tl.float32) * b_x[None, :]
    out, out_up = tl.sum(acc, 1), tl.sum(up, 1)
    if NORM:
        factor = 1.0 / tl.sqrt(tl.sum(squares, 0) / K + eps)
        out, out_up = out * factor, out_up * factor
    if BIAS:
        out += tl.load(bias + o_n, mask=real, other=0.0).to(tl.float32)
    if GATED:
        out = out / (1.0 + tl.exp(-out)) * out_up
    if RESIDUAL:
        out += tl.load(residual + o_n, mask=real, other=0.0).to(tl.float32)
    if ARGMAX:
        tl.atomic_max(best, tl.max(tl.where(real, _sort_key(out, o_n), NONE), 0), sem="relaxed")
    tl.store(y + o_n, out.to(y.dtype.element_ty), mask=real)


@triton.jit
def _normalise(x, norm, y, eps, K: tl.constexpr, KP: tl.constexpr, PDL: tl.constexpr):
    """Root-mean-square norm of one row of x [B, K] a program."""
    row = tl.program_id(0).to(tl.int64) * K
    o = tl.arange(0, KP)
    launch.wait_for_previous(PDL)
    b_x = tl.load(x + row + o, mask=o < K, other=0.0).to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(b_x * b_x, 0) / K + eps)
    tl.store(y + row + o, (b_x * factor * tl.load(norm + o, mask=o < K, other=0.0).to(tl.float32)).to(y.dtype.element_ty), mask=o < K)


@triton.jit
def _epilogue(
    acc, bias, residual, y, best, n, BN: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr,
    ARGMAX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y [B, N] from products acc [B, N] (GATED: [B, 2 N]): what `_one` does after its sum."""
    i_b = tl.program_id(1)
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    real = o_n < n
    launch.wait_for_previous(PDL)
    at = i_b.to(tl.int64) * n + o_n
    if GATED:
        out = tl.load(acc + i_b.to(tl.int64) * 2 * n + o_n, mask=real, other=0.0).to(tl.float32)
        out = out / (1.0 + tl.exp(-out)) * tl.load(acc + i_b.to(tl.int64) * 2 * n + n + o_n, mask=real, other=0.0).to(tl.float32)
    else:
        out = tl.load(acc + at, mask=real, other=0.0).to(tl.float32)
    if BIAS:
        out += tl.load(bias + o_n, mask=real, other=0.0).to(tl.float32)
    if RESIDUAL:
        out += tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
    if ARGMAX:
        tl.atomic_max(best + i_b, tl.max(tl.where(real, _sort_key(out, o_n), NONE), 0), sem="relaxed")
    tl.store(y + at, out.to(y.dtype.element_ty), mask=real)


def linear(
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gated: bool = False,
    best: torch.Tensor | None = None,
    eps: float = 1e-6,
    rows: int = 8,
    cols: int = 512,
) -> torch.Tensor:
    """y [B, N] = x [B, K] times w^T, w [N, K] (2 N rows where `gated`: silu(gate) * up).

    `norm` [K] applies a root-mean-square norm to x first; `bias` [N]; `residual` [B, N] is added; `best` [B] int64 is
    raised to the key of the largest output (`token_of` reads it). Tensors contiguous. One sequence runs as one fused
    kernel with `rows` x `cols` tiles of the weights; several run through the library's GEMM, between two small
    kernels: a fused one left it 5.8 ms behind its bytes on an H100 in the shape of a 7B model.
    """
    batch, k = x.shape
    n = y.shape[1]
    pdl = launch.options()
    unused = x
    flags = {"BIAS": bias is not None, "RESIDUAL": residual is not None, "GATED": gated, "ARGMAX": best is not None, **pdl}
    pointers = unused if bias is None else bias, unused if residual is None else residual
    if batch == 1:
        _one[(triton.cdiv(n, rows),)](
            x, w, pointers[0], unused if norm is None else norm, pointers[1], y, unused if best is None else best, n, eps,
            K=k, BN=rows, BK=min(cols, triton.next_power_of_2(k)), NORM=norm is not None, num_warps=4, **flags,
        )  # fmt: skip
        return y
    if norm is not None:
        normed = torch.empty_like(x)
        _normalise[(batch,)](x, norm, normed, eps, K=k, KP=triton.next_power_of_2(k), num_warps=8, **pdl)
        x = normed
    acc = torch.mm(x, w.t())
    _epilogue[(triton.cdiv(n, 1024), batch)](
        acc, *pointers, y, unused if best is None else best, n, BN=1024, num_warps=4, **flags
    )  # fmt: skip
    return y


@triton.jit
def _embed(
    best, table, x, tokens, lens, pages, stride_pages, host_pages, H: tl.constexpr, HP: tl.constexpr, PAGE: tl.constexpr,
    SINK: tl.constexpr, RING: tl.constexpr, TIERED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Token from the argmax key of the last step: its embedding, one more token in lens, and where its page lives."""
    i_b = tl.program_id(0)
    launch.wait_for_previous(PDL)
    token = 0xFFFFFFFF - (tl.load(best + i_b) & 0xFFFFFFFF)
    o = tl.arange(0, HP)
    tl.store(x + i_b.to(tl.int64) * H + o, tl.load(table + token * H + o, mask=o < H), mask=o < H)
    tl.debug_barrier()
    tl.store(best + i_b, NONE)
    tl.store(tokens + i_b, token)
    pos = tl.load(lens + i_b)
    tl.store(lens + i_b, pos + 1)
    if TIERED:  # noqa: SIM102 - one is known when the kernel is compiled, the other is not
        if pos % PAGE == 0:
            # A new block takes the ring slot of the block RING before it, which is read from the host from now on.
            block = pos // PAGE
            row = pages + i_b.to(tl.int64) * stride_pages
            slots = SINK + RING
            tl.store(row + block, i_b * slots + tl.where(block < SINK, block, SINK + (block - SINK) % RING))
            if block - RING >= SINK:
                tl.store(row + block - RING, -1 - (i_b * host_pages + block - RING))


def embed(
    best: torch.Tensor, table: torch.Tensor, x: torch.Tensor, tokens: torch.Tensor, lens: torch.Tensor, pages: torch.Tensor,
    *, host_pages: int = 0, page: int = 128, sink: int = 0, ring: int = 0,
) -> None:  # fmt: skip
    """x [B, H] = table rows of the tokens in `best` [B] int64; tokens [B] int64 says them; lens [B] grows by one.

    With `ring` > 0 the page table is kept for two tiers: `sink` and `ring` device pages per sequence, the rest on the host.
    """
    h = x.shape[1]
    _embed[(x.shape[0],)](
        best, table, x, tokens, lens, pages, pages.stride(0), host_pages, H=h, HP=triton.next_power_of_2(h), PAGE=page,
        SINK=sink, RING=max(1, ring), TIERED=ring > 0, num_warps=8, **launch.options(),
    )  # fmt: skip


@triton.jit
def _rope_append(
    qkv, q, norm_q, norm_k, k, v, k_host, v_host, table, lens, data, scale, running, blocks, host_pages, log2_theta, eps,
    stride_table, k_p, k_h, k_t, v_p, v_h, v_t,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, KIND: tl.constexpr, NORM: tl.constexpr,
    SUMMARISE: tl.constexpr, TIERED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a head: rotate it; a query goes to q, a key with its value into the cache and its block's summary."""
    i_h, i_b = tl.program_id(0), tl.program_id(1)
    o_d = tl.arange(0, D)
    partner = (o_d + D // 2) % D
    launch.wait_for_previous(PDL)
    pos = tl.load(lens + i_b) - 1
    row = qkv + i_b.to(tl.int64) * (HQ + 2 * HKV) * D
    b_x = tl.load(row + i_h * D + o_d).to(tl.float32)
    b_p = tl.load(row + i_h * D + partner).to(tl.float32)
    if NORM:
        factor = 1.0 / tl.sqrt(tl.sum(b_x * b_x, 0) / D + eps)
        own = tl.where(i_h < HQ, tl.load(norm_q + o_d), tl.load(norm_k + o_d)).to(tl.float32)
        other = tl.where(i_h < HQ, tl.load(norm_q + partner), tl.load(norm_k + partner)).to(tl.float32)
        b_x = b_x * factor * own
        b_p = b_p * factor * other
    angle = pos.to(tl.float32) * tl.exp2(-log2_theta * (o_d % (D // 2)).to(tl.float32) * (2.0 / D))
    b_x = b_x * tl.cos(angle) + tl.where(o_d < D // 2, -b_p, b_p) * tl.sin(angle)
    if i_h < HQ:
        tl.store(q + (i_b.to(tl.int64) * HQ + i_h) * D + o_d, b_x.to(q.dtype.element_ty))
    else:
        i_kv = i_h - HQ
        b_k = b_x.to(k.dtype.element_ty)
        b_v = tl.load(row + (i_h + HKV) * D + o_d)
        page = paging.pages(table, i_b, stride_table, pos, pos, pos + 1, PAGE, 1, True)
        tl.store(paging.rows(k, page, pos, i_kv, k_p, k_h, k_t, PAGE, True) + o_d, b_k)
        tl.store(paging.rows(v, page, pos, i_kv, v_p, v_h, v_t, PAGE, True) + o_d, b_v)
        if TIERED:
            # The host keeps every block, so that a block can leave the device without a copy.
            on_host = i_b * host_pages + pos // PAGE
            tl.store(paging.rows(k_host, on_host, pos, i_kv, k_p, k_h, k_t, PAGE, True) + o_d, b_k)
            tl.store(paging.rows(v_host, on_host, pos, i_kv, v_p, v_h, v_t, PAGE, True) + o_d, b_v)
        if SUMMARISE:
            update_summary(data, scale, running, i_b * HKV + i_kv, pos, b_k.to(tl.float32), blocks, D, PAGE, KIND)


def rope_append(
    qkv: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lens: torch.Tensor, theta: float,
    *, norms: tuple[torch.Tensor, torch.Tensor] | None = None, eps: float = 1e-6, summary: Summaries | None = None,
    host: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:  # fmt: skip
    """qkv [B, (HQ + 2 HKV) D] of token lens - 1: rotated queries to q [B, HQ, D], keys and values into the paged cache.

    k, v [pages, HKV, page, D] contiguous; `norms` are the weights [D] of a per-head norm of queries and keys; `summary` is
    kept up to date; `host` are the pinned caches [B pages per sequence, HKV, page, D] that receive the token too.
    """
    batch, heads_q, d = q.shape
    unused = q
    norm_q, norm_k = norms or (unused, unused)
    k_host, v_host = host or (k, v)
    _rope_append[(heads_q + k.shape[1], batch)](
        qkv, q, norm_q, norm_k, k, v, k_host, v_host, table, lens, unused if summary is None else summary.raw,
        unused if summary is None or summary.scale is None else summary.scale, unused if summary is None else summary.running,
        0 if summary is None else summary.blocks, k_host.shape[0] // batch, math.log2(theta), eps, table.stride(0),
        *k.stride()[:3], *v.stride()[:3], HQ=heads_q, HKV=k.shape[1], D=d, PAGE=k.shape[2],
        KIND=0 if summary is None else KINDS.index(summary.kind), NORM=norms is not None, SUMMARISE=summary is not None,
        TIERED=host is not None, num_warps=4, **launch.options(),
    )  # fmt: skip


def token_of(best: torch.Tensor) -> torch.Tensor:
    """Tokens named by argmax keys [B] int64."""
    return 0xFFFFFFFF - (best & 0xFFFFFFFF)
