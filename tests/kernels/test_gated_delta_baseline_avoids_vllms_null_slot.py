"""An engine's gated-delta kernel skips a sequence whose state slot is 0 and leaves its output as the memory was: no sequence may get it."""

import sys
from itertools import accumulate
from types import ModuleType

import pytest
import torch

from kernels import baselines, reference


def engine_rule(q, k, v, *, g, beta, scale, initial_state, cu_seqlens, ssm_state_indices, **_) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a sequence, as the engine has it: states by slot, in place, slots below 1 passed over."""
    out = torch.full_like(v, float("nan"))
    for i, slot in enumerate(ssm_state_indices.tolist()):
        if slot > 0:
            at = slice(int(cu_seqlens[i]), int(cu_seqlens[i + 1]))
            found, state = reference.gdn_decode(q[0, at], k[0, at], v[0, at], g[0, at], beta[0, at], initial_state[slot, None], scale, True)
            out[0, at], initial_state[slot] = found.to(out.dtype), state[0].to(initial_state.dtype)
    return out, initial_state


def test_every_sequence_is_computed_from_its_own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "vllm.model_executor.layers.fla.ops"
    for name in accumulate(path.split("."), lambda package, part: f"{package}.{part}"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[path], "fused_recurrent_gated_delta_rule", engine_rule, raising=False)
    gen = torch.Generator().manual_seed(0)
    batch, heads, key_heads, d = 3, 4, 2, 16
    qkv = torch.randn(batch, (2 * key_heads + heads) * d, generator=gen)
    decay, beta = -torch.rand(batch, heads, generator=gen), torch.rand(batch, heads, generator=gen)
    state = torch.randn(batch, heads, d, d, generator=gen)
    q, k, v = (x.reshape(batch, -1, d) for x in qkv.split([key_heads * d, key_heads * d, heads * d], dim=1))
    want, _ = reference.gdn_decode(q, k, v, decay, beta, state, 0.25, True)
    call = baselines.gated_delta(qkv, decay, beta, state, key_heads, 0.25)["engine_fused_recurrent"]
    assert reference.relative_error(call(), want) < 1e-6
