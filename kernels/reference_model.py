"""Naive float64 decode step: the weights and caches of a `model_step.Step` in plain torch."""

from __future__ import annotations

import torch

from kernels import reference
from kernels.model_step import ModelStep

F64 = torch.float64


def history(step: ModelStep) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Keys and values per layer and sequence, [KV heads, context, D] float64 each, as the step's caches hold them now."""
    out = []
    for i in range(step.shape.layers):
        source, table = (step.cache[i], step.table) if step.host is None else (step.host[i], None)
        if table is None:
            table = torch.arange(step.batch * step.capacity, device=source[0].device).view(step.batch, -1)
        both = [[reference.tokens_of(c, table, b, step.context).to(step.device, F64) for b in range(step.batch)] for c in source]
        out.append((both[0], both[1]))
    return out


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight.to(F64)


def rotate(x: torch.Tensor, pos: int, theta: float) -> torch.Tensor:
    """Rotary position `pos` on x [..., D], channel i paired with i + D / 2."""
    half = x.shape[-1] // 2
    angle = pos * theta ** (-torch.arange(half, dtype=F64, device=x.device) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)


def advance(
    step: ModelStep, caches: list[tuple[list[torch.Tensor], list[torch.Tensor]]], tokens: list[int], keep: torch.Tensor | None = None
) -> torch.Tensor:
    """Logits [B, vocab] float64 after `tokens`; appends to `caches`. Dense, or over `keep` [KV heads, tokens] for each."""
    s = step.shape
    rows = []
    for b, token in enumerate(tokens):
        x = step.embedding[token].to(F64)
        for i, layer in enumerate(step.layers):
            qkv = layer.w_qkv.to(F64) @ norm(x, layer.norm_attention, s.eps)
            if layer.b_qkv is not None:
                qkv = qkv + layer.b_qkv.to(F64)
            q, k, v = qkv.view(-1, s.head_dim).split([s.heads_q, s.heads_kv, s.heads_kv])
            if layer.norms_qk is not None:
                q, k = norm(q, layer.norms_qk[0], s.eps), norm(k, layer.norms_qk[1], s.eps)
            keys, values = caches[i]
            pos = keys[b].shape[1]
            keys[b] = torch.cat([keys[b], rotate(k, pos, s.rope_theta)[:, None]], dim=1)
            values[b] = torch.cat([values[b], v[:, None]], dim=1)
            seen = torch.ones(s.heads_kv, pos + 1, dtype=torch.bool, device=x.device) if keep is None else keep[:, : pos + 1]
            attended = reference.attend(rotate(q, pos, s.rope_theta), keys[b], values[b], seen, s.head_dim**-0.5)
            x = x + layer.w_o.to(F64) @ attended.flatten()
            gate, up = (layer.w_up.to(F64) @ norm(x, layer.norm_mlp, s.eps)).chunk(2)
            x = x + layer.w_down.to(F64) @ (torch.nn.functional.silu(gate) * up)
        rows.append(step.head.to(F64) @ norm(x, step.norm_out, s.eps))
    return torch.stack(rows)
