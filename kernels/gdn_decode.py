"""One decode step of the gated delta rule (gated DeltaNet linear attention), state updated in place.

Shapes: qkv [B, 2 HK K + HV V]; decay, beta [B, HV]; state S [slots, HV, V, K]; out [B, HV, V].
Per (sequence, value head), with decay a in (0, 1] and strength b:  S <- S a;  d = (v - S k) b;  S <- S + d k^T;  out = S q scale.
Memory-bound: every state value is read and written once, 2 V K itemsize bytes. The state is float32; bf16 only if asked for by name,
since the recurrence carries its rounding from step to step. Reference: `reference.gdn_decode`.

A program owns `tile_v` rows of S. Sums run along K inside one row, so results are bit-identical for every `tile_v` at the same
number of warps per row. `ERROR_BOUND` bounds the relative error of out against float64, by the dtype of q, k, v.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels import checks, launch

ERROR_BOUND = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float32: 2e-6}
STATE_ERROR_BOUND = {torch.float32: 2e-6, torch.bfloat16: 5e-3}


@triton.jit
def _gdn(
    qkv, decay, beta, a_log, dt_bias, state, slots, out, scale, stride_qkv, stride_slot,
    HK: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, L2NORM: tl.constexpr,
    RAW: tl.constexpr, PER_CHANNEL: tl.constexpr, SLOTTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    i_v, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // HV, i_bh % HV
    i_hk = i_h // (HV // HK)
    o_k, o_v = tl.arange(0, K), i_v * BV + tl.arange(0, BV)
    launch.wait_for_previous(PDL)
    i_slot = i_b.to(tl.int64)
    if SLOTTED:
        i_slot = tl.load(slots + i_b).to(tl.int64)
    p_out = out + (i_bh.to(tl.int64)) * V + o_v
    if i_slot < 0:
        tl.store(p_out, tl.zeros([BV], dtype=out.dtype.element_ty))
    else:
        p_s = state + i_slot * stride_slot + i_h * (V * K) + o_v[:, None] * K + o_k[None, :]
        s = tl.load(p_s).to(tl.float32)
        row = qkv + i_b.to(tl.int64) * stride_qkv
        b_q = tl.load(row + i_hk * K + o_k).to(tl.float32)
        b_k = tl.load(row + HK * K + i_hk * K + o_k).to(tl.float32)
        b_v = tl.load(row + 2 * HK * K + i_h * V + o_v).to(tl.float32)
        if L2NORM:
            b_q = b_q / tl.sqrt(tl.sum(b_q * b_q, 0) + 1e-6)
            b_k = b_k / tl.sqrt(tl.sum(b_k * b_k, 0) + 1e-6)
        b = tl.load(beta + i_bh).to(tl.float32)
        if PER_CHANNEL:
            g = tl.load(decay + i_bh.to(tl.int64) * K + o_k).to(tl.float32)
        else:
            g = tl.load(decay + i_bh).to(tl.float32)
        if RAW:
            if PER_CHANNEL:
                g = g + tl.load(dt_bias + i_h * K + o_k).to(tl.float32)
            else:
                g = g + tl.load(dt_bias + i_h).to(tl.float32)
            softplus = tl.where(g > 20.0, g, tl.log(1.0 + tl.exp(tl.minimum(g, 20.0))))
            g = -tl.exp(tl.load(a_log + i_h).to(tl.float32)) * softplus
            b = 1.0 / (1.0 + tl.exp(-b))
        a = tl.exp(g)
        if PER_CHANNEL:
            s = s * a[None, :]
        else:
            s = s * a
        d = (b_v - tl.sum(s * b_k[None, :], 1)) * b
        s = s + d[:, None] * b_k[None, :]
        tl.store(p_s, s.to(state.dtype.element_ty))
        tl.store(p_out, (tl.sum(s * b_q[None, :], 1) * scale).to(out.dtype.element_ty))


def gdn_decode(
    qkv: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    *,
    key_heads: int,
    a_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    scale: float | None = None,
    l2norm: bool = True,
    out: torch.Tensor | None = None,
    allow_bf16_state: bool = False,
    tile_v: int | None = None,
) -> torch.Tensor:
    """Advance `state` by one token in place and return the output [B, HV, V] in qkv's dtype.

    qkv [B, 2 HK K + HV V]: the queries and keys of HK = `key_heads` heads, then the values of HV heads, HV a multiple of
    HK; state [slots, HV, V, K] float32 contiguous per head (bf16 with `allow_bf16_state`), K and V powers of two from 16 to
    256; decay [B, HV], or [B, HV, K] for one gate per key channel; beta [B, HV]. With a_log [HV] and dt_bias ([HV] or
    [HV, K]) the gates are raw: log decay = -exp(a_log) softplus(decay + dt_bias), strength = sigmoid(beta); without them
    `decay` is the log decay itself and `beta` the strength. slots [B] int32: the state of each sequence, distinct; a
    negative one is a padded sequence, whose output is zero. scale defaults to K^-0.5. `tile_v` state rows per program
    (default: at most 32).

    `ValueError` naming the argument on bad input.
    """
    checks.tensor("qkv", qkv, [None, None], checks.FLOATS)
    batch = qkv.shape[0]
    dtypes = (torch.float32, torch.bfloat16) if allow_bf16_state else (torch.float32,)
    checks.tensor("state", state, [None, None, None, None], dtypes, qkv)
    n_slots, heads_v, v, k = state.shape
    checks.head_dim(k, "state K")
    checks.head_dim(v, "state V")
    if state.stride()[1:] != (v * k, k, 1):
        raise ValueError(f"state: each slot must be contiguous, strides are {state.stride()}")
    checks.pairs("qkv", batch, heads_v)
    checks.at_least("key_heads", key_heads, 1)
    checks.head_group(heads_v, key_heads, "key_heads")
    if qkv.shape[1] != 2 * key_heads * k + heads_v * v:
        raise ValueError(f"qkv: {qkv.shape[1]} columns, expected {2 * key_heads * k + heads_v * v}")
    per_channel = isinstance(decay, torch.Tensor) and decay.dim() == 3
    gate = [heads_v, k] if per_channel else [heads_v]
    checks.tensor("decay", decay, [batch, *gate], checks.FLOATS, qkv, contiguous=True)
    checks.tensor("beta", beta, [batch, heads_v], checks.FLOATS, qkv, contiguous=True)
    raw = a_log is not None
    if raw != (dt_bias is not None):
        raise ValueError(f"{'dt_bias' if raw else 'a_log'}: raw gates need both a_log and dt_bias")
    if raw:
        checks.tensor("a_log", a_log, [heads_v], checks.FLOATS, qkv, contiguous=True)
        checks.tensor("dt_bias", dt_bias, gate, checks.FLOATS, qkv, contiguous=True)
    if slots is not None:
        checks.tensor("slots", slots, [batch], [torch.int32], qkv)
    elif n_slots != batch:
        raise ValueError(f"state: {n_slots} slots for a batch of {batch}; name them with slots")
    tile_v = min(32, v) if tile_v is None else tile_v
    if not checks.is_power_of_two(tile_v) or tile_v > v:
        raise ValueError(f"tile_v: {tile_v} is not a power of two up to {v}")
    shape = [batch, heads_v, v]
    out = qkv.new_empty(shape) if out is None else checks.tensor("out", out, shape, [qkv.dtype], qkv, contiguous=True)
    _gdn[(v // tile_v, batch * heads_v)](
        qkv, decay, beta, a_log if raw else decay, dt_bias if raw else decay, state, decay if slots is None else slots, out,
        checks.softmax_scale(scale, k), qkv.stride(0), state.stride(0),
        HK=key_heads, HV=heads_v, K=k, V=v, BV=tile_v, L2NORM=l2norm, RAW=raw, PER_CHANNEL=per_channel,
        SLOTTED=slots is not None, num_warps=4, **launch.options(),
    )  # fmt: skip
    return out
