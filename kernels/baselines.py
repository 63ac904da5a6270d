"""Baselines of the benchmark: torch's SDPA backends and, where vLLM is importable, its paged FlashAttention 3 and gated-delta kernel.

Each function returns calls by name. What is not importable is absent; what fails when called becomes a row without a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

Call = Callable[[], torch.Tensor]
# The fastest backends for one query token per sequence; the memory-efficient and math ones were slower in every cell.
BACKENDS = {"sdpa_cudnn_gqa": SDPBackend.CUDNN_ATTENTION, "sdpa_flash_gqa": SDPBackend.FLASH_ATTENTION}


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Call]:
    """Grouped-query SDPA: q [B, HQ, D], contiguous k, v [B, KV heads, N, D]; each call returns [B, HQ, D]."""
    return {name: functools.partial(_sdpa, backend, q, k, v) for name, backend in BACKENDS.items()}


def _sdpa(backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]


def fa3_paged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lens: torch.Tensor) -> dict[str, Call]:
    """FlashAttention 3 paged decode: q [B, HQ, D]; token-major k, v [pages, page, KV heads, D].

    The split is planned once before, as an engine does for all layers of a step, so that a call is only the attention.
    """
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata
    except Exception:  # an engine that is present but broken is as good as absent
        return {}
    batch, heads_q, d = q.shape
    starts = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
    longest = k.shape[1] * table.shape[1]

    @functools.cache
    def plan() -> torch.Tensor:
        return get_scheduler_metadata(
            batch, 1, longest, heads_q, k.shape[2], d, lens, q.dtype, cu_seqlens_q=starts, page_size=k.shape[1], causal=True
        )

    def call() -> torch.Tensor:
        return flash_attn_varlen_func(
            q, k, v, max_seqlen_q=1, cu_seqlens_q=starts, max_seqlen_k=longest, seqused_k=lens, block_table=table,
            softmax_scale=d**-0.5, causal=True, scheduler_metadata=plan(), fa_version=3,
        )  # fmt: skip

    return {"fa3_paged_planned": call}


def gated_delta(
    qkv: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, state: torch.Tensor, key_heads: int, scale: float
) -> dict[str, Call]:
    """vLLM's gated-delta decode kernel (derived from flash-linear-attention), on the arguments of `gdn_decode` with finished gates.

    It steps a copy of the state, the same bytes.
    """
    try:
        from vllm.model_executor.layers.fla.ops import fused_recurrent_gated_delta_rule
    except Exception:
        return {}
    batch, heads_v, v, k = state.shape
    split = zip(qkv.split([key_heads * k, key_heads * k, heads_v * v], dim=1), (k, k, v), strict=True)
    shaped = [x.reshape(1, batch, -1, n).contiguous() for x, n in split]
    # Slot 0 is the engine's null block: a sequence there is skipped and its output left as the memory was.
    slots = torch.arange(1, batch + 1, dtype=torch.int32, device=qkv.device)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=qkv.device)
    own = torch.cat([torch.zeros_like(state[:1]), state])

    def call() -> torch.Tensor:
        out, _ = fused_recurrent_gated_delta_rule(
            *shaped, g=decay[None], beta=beta[None], scale=scale, initial_state=own, inplace_final_state=True,
            cu_seqlens=starts, ssm_state_indices=slots, use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
        return out[0]

    return {"engine_fused_recurrent": call}
