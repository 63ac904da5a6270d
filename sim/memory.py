"""Device memory: what is resident, how many KV tokens fit, and how many sequences."""

from __future__ import annotations

from dataclasses import dataclass

from sim.bill import coefficients
from sim.policy import AttentionPolicy
from sim.precision import ACTIVATION_BYTES, STATE_BYTES, Precision
from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec

DEFAULT_UTILIZATION = 0.9
DEFAULT_TOKEN_BUDGET = 2048


@dataclass(frozen=True, slots=True)
class Memory:
    """One GPU's memory in bytes: what utilisation allows, what is taken, what is left for KV (may be negative)."""

    allowed: float
    weights: float
    activations: float

    @property
    def free(self) -> float:
        return self.allowed - self.weights - self.activations


def resident_weight_bytes(model: ModelSpec, precision: Precision, tp: int = 1) -> float:
    """Weight bytes resident per GPU: every parameter, experts at their own precision where the checkpoint fixes one."""
    return model.resident_bytes(precision.weight_bytes) / tp


def activation_bytes(model: ModelSpec, token_budget: int = DEFAULT_TOKEN_BUDGET, tp: int = 1) -> float:
    """Peak activations of an iteration of `token_budget` tokens: residual streams, the widest MLP, and float32 logits of the sampled rows.

    An estimate from the shape (sampled rows bounded by 256, an engine's usual cap), refined by calibration.
    """
    width = max(
        (g.mlp.top_k * g.mlp.intermediate + g.mlp.shared_intermediate) if g.mlp.kind == "moe" else g.mlp.intermediate for g in model.groups
    )
    per_token = (4 * model.hidden + 3 * width / tp) * ACTIVATION_BYTES
    logits = min(token_budget, 256) * model.vocab * 4.0 / tp
    return token_budget * per_token + logits


def device_memory(
    model: ModelSpec,
    gpu: GpuSpec,
    precision: Precision,
    *,
    tp: int = 1,
    utilization: float = DEFAULT_UTILIZATION,
    token_budget: int = DEFAULT_TOKEN_BUDGET,
) -> Memory:
    """What one GPU of `tp` has and needs before any KV."""
    return Memory(
        allowed=utilization * gpu.memory_bytes,
        weights=resident_weight_bytes(model, precision, tp),
        activations=activation_bytes(model, token_budget, tp),
    )


def sequence_bytes(model: ModelSpec, context: int, precision: Precision, policy: AttentionPolicy, tp: int = 1) -> tuple[float, float]:
    """(bytes in HBM, bytes in host RAM) that one sequence of `context` tokens keeps, per GPU.

    With the cache in host RAM, the block summaries, the sliding-window layers' KV and the recurrent state stay in HBM.
    """
    c = coefficients(model, precision, tp)
    full = context * c.kv_token_bytes
    near = min(context, model.window) * c.window_token_bytes if model.window else 0.0
    state = (model.state_elements * STATE_BYTES + model.conv_elements * ACTIVATION_BYTES) / tp
    summaries = context / policy.unit_tokens * c.summary_unit_bytes if policy.selects else 0.0
    if policy.kind == "sink-window":
        full = min(context, policy.keep_tokens) * c.kv_token_bytes  # what falls out of the window is dropped
    hbm = near + state + summaries
    return (hbm, full) if policy.placement == "host" else (hbm + full, 0.0)


def n_max(memory: Memory, bytes_per_sequence: float) -> float:
    """Sequences that fit, unrounded; below 1 the context is infeasible. Infinite when a sequence keeps nothing."""
    if bytes_per_sequence <= 0:
        return float("inf")
    return max(0.0, memory.free) / bytes_per_sequence


def kv_block_count(memory: Memory, model: ModelSpec, precision: Precision, block_size: int, tp: int = 1) -> int:
    """KV blocks of `block_size` tokens that fit in what is left (all layers' KV counted at full length, as paged caches allot them)."""
    c = coefficients(model, precision, tp)
    per_block = block_size * (c.kv_token_bytes + c.window_token_bytes)
    return int(max(0.0, memory.free) // per_block) if per_block else 0
