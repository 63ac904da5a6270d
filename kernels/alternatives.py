"""The other implementations a kernel here is measured against, in the same run: torch's attention backends and, where an
engine or library package is importable, its paged FlashAttention 3 and its gated-delta kernel.

Each function returns callables by name. What is not importable is simply absent; what fails when called is reported by
the benchmark as a row without a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

Call = Callable[[], torch.Tensor]

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
MATH_TOKENS = 2**17  # the math backend materialises scores and repeated heads: only small caches


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Call]:
    """q [B, HQ, D], contiguous k, v [B, KV heads, N, D]; each call returns [B, HQ, D].

    gqa: one query token, heads grouped by the backend. packed: the query heads of a KV head passed as query tokens, the
    same mathematics, open to backends that know no grouping.
    """
    batch, heads_q, d = q.shape
    heads = k.shape[1]
    as_heads, as_tokens = q[:, :, None], q.view(batch, heads, heads_q // heads, d)
    calls: dict[str, Call] = {}
    for name, backend in BACKENDS.items():
        if name == "math" and batch * k.shape[2] > MATH_TOKENS:
            continue
        calls[f"sdpa_{name}_packed"] = functools.partial(_sdpa, backend, as_tokens, k, v, False)
        if name != "efficient":
            calls[f"sdpa_{name}_gqa"] = functools.partial(_sdpa, backend, as_heads, k, v, True)
    return calls


def _sdpa(backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gqa: bool) -> torch.Tensor:
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=gqa)
    return out.reshape(q.shape[0], -1, q.shape[-1])


def fa3_paged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lens: torch.Tensor) -> dict[str, Call]:
    """FlashAttention 3 paged decode of an importable engine: q [B, HQ, D]; token-major k, v [pages, page, KV heads, D].

    fa3_paged: the split is planned inside the call. fa3_paged_planned: planned once before, as an engine does for all layers of
    a step, so that a call is the attention alone.
    """
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata
    except Exception:  # an engine that is present but broken is as good as absent
        return {}
    batch, heads_q, d = q.shape
    starts = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
    longest = k.shape[1] * table.shape[1]

    def call(plan: torch.Tensor | None = None) -> torch.Tensor:
        return flash_attn_varlen_func(
            q, k, v, max_seqlen_q=1, cu_seqlens_q=starts, max_seqlen_k=longest, seqused_k=lens, block_table=table,
            softmax_scale=d**-0.5, causal=True, scheduler_metadata=plan, fa_version=3,
        )  # fmt: skip

    plans: list[torch.Tensor] = []

    def planned() -> torch.Tensor:
        if not plans:
            plans.append(get_scheduler_metadata(
                batch, 1, longest, heads_q, k.shape[2], d, lens, q.dtype, cu_seqlens_q=starts, page_size=k.shape[1], causal=True,
            ))  # fmt: skip
        return call(plans[0])

    return {"fa3_paged": call, "fa3_paged_planned": planned}


def gated_delta(
    qkv: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, state: torch.Tensor, key_heads: int, scale: float
) -> dict[str, Call]:
    """Gated-delta decode kernels of importable packages, on the arguments of `gdn_decode` with finished scalar gates.

    They update a copy of the state or hand back a new one, as their own interface has it; the bytes are the same.
    """
    batch, heads_v, v, k = state.shape
    q_, k_, v_ = qkv.split([key_heads * k, key_heads * k, heads_v * v], dim=1)
    shaped = [x.reshape(batch, 1, -1, n).contiguous() for x, n in ((q_, k), (k_, k), (v_, v))]
    calls: dict[str, Call] = {}
    try:
        from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule as fla_rule
    except Exception:
        pass
    else:
        transposed = state.transpose(2, 3).contiguous()

        def fla_call() -> torch.Tensor:
            out, _ = fla_rule(
                *shaped, g=decay[:, None], beta=beta[:, None], scale=scale, initial_state=transposed,
                output_final_state=True, use_qk_l2norm_in_kernel=True,
            )  # fmt: skip
            return out[:, 0]

        calls["fla_fused_recurrent"] = fla_call
    try:
        from vllm.model_executor.layers.fla.ops import fused_recurrent_gated_delta_rule as engine_rule
    except Exception:
        return calls
    # Slot 0 is the engine's null block: a sequence there is skipped and its output left as the memory was.
    slots = torch.arange(1, batch + 1, dtype=torch.int32, device=qkv.device)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=qkv.device)
    own = torch.cat([torch.zeros_like(state[:1]), state])

    def engine_call() -> torch.Tensor:
        out, _ = engine_rule(
            *(x.view(1, batch, *x.shape[2:]) for x in shaped), g=decay[None], beta=beta[None], scale=scale,
            initial_state=own, inplace_final_state=True, cu_seqlens=starts, ssm_state_indices=slots,
            use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
        return out[0]

    return {**calls, "engine_fused_recurrent": engine_call}
