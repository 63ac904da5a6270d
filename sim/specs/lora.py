"""LoRA: low-rank adapters beside a model's linear layers, as vLLM serves them (`--enable-lora`).

Of rank r each projection of [in, out] has r (in + out) parameters: attention's q, k, v and o, and a dense MLP's gate, up and down. Routed
experts have none. Adapters are kept in 16 bits at the largest rank, whatever theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import UsageError
from sim.specs.model import ModelSpec

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vLLM's max_lora_rank


@dataclass(frozen=True, slots=True)
class Lora:
    """`adapters` resident (max_loras) of rank up to `rank`; `share` of the requests use one, any of them as often."""

    rank: int = 16
    adapters: int = 1
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.rank not in RANKS:
            raise UsageError(f"max-lora-rank must be one of {', '.join(map(str, RANKS))}, got {self.rank}")
        if not 1 <= self.adapters <= 4096:
            raise UsageError(f"max-loras must be in 1..4096, got {self.adapters}")
        if not 0.0 < self.share <= 1.0:
            raise UsageError(f"lora-share must lie in (0, 1], got {self.share:g}")

    def params(self, model: ModelSpec) -> float:
        """Parameters of one adapter."""
        return self.rank * sum(width for width, _ in projections(model))


def projections(model: ModelSpec) -> list[tuple[float, int]]:
    """(in + out of all projections, fused projections) of each layer group. UsageError for a model whose attention has no such ones."""
    found, hidden = [], model.hidden
    for group in model.groups:
        mixer, mlp = group.mixer, group.mlp
        width, count = 0.0, 0
        if mixer.kind == "attention":
            q, kv = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
            width, count = width + 3 * hidden + q + 2 * kv + q + hidden, count + 2
        elif mixer.kind != "none":
            raise UsageError(f"enable-lora: adapters of {mixer.kind} layers ({model.name}) are not known here")
        if mlp.kind == "dense":
            width, count = width + 3 * (hidden + mlp.intermediate), count + 2
        found.append((group.count * width, group.count * count))
    return found
