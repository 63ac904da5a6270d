"""LoRA: low-rank adapters beside a model's linear layers, as vLLM serves them (`--enable-lora`).

Of rank r each projection of [in, out] has r (in + out) parameters: attention's q, k, v and o, and a dense MLP's gate, up and down. Routed
experts have none. Adapters are kept in 16 bits at the largest rank, whatever theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import UsageError
from sim.specs.model import ModelSpec

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vLLM's max_lora_rank
# Shrink and expand of qkv, o, gate_up and down, in small kernels' time: of a projection, and of it for every adapter that rows use.
# What the host launches for it, in layers' launches, outside a graph: both by iterations of seven servers at 2 requests/s (medians between
# tokens); in pieces of graphs: quickest first tokens of one 8B with and without adapters. Its rows pass at a quarter of the bandwidth:
# bursts of 8,192 tokens, of which half asked for an adapter.
KERNELS_PER_PROJECTION, KERNELS_PER_ADAPTER = 3.0, 1.8
LAUNCHES_PER_PROJECTION, PIECES_PER_PROJECTION = 0.5, 0.1
SLOWER_ROWS = 4.0


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
        return self.rank * sum(width for width, _ in _projections(model))

    def kernels(self, model: ModelSpec) -> float:
        """Small kernels of an iteration, whatever adapters it uses."""
        return KERNELS_PER_PROJECTION * sum(count for _, count in _projections(model))

    def adapter_kernels(self, model: ModelSpec) -> float:
        """Small kernels more for each adapter that rows of an iteration use."""
        return KERNELS_PER_ADAPTER * sum(count for _, count in _projections(model))

    def launches(self, model: ModelSpec) -> float:
        """Layers' worth of launching of an iteration outside a graph."""
        return LAUNCHES_PER_PROJECTION * sum(count for _, count in _projections(model))

    def pieces(self, model: ModelSpec) -> float:
        """The same of one that carries prefill in pieces of graphs."""
        return PIECES_PER_PROJECTION * sum(count for _, count in _projections(model))

    def row_bytes(self, model: ModelSpec) -> float:
        """Bytes of memory time per row that uses an adapter: each projection's input is read, its output read and written, in 16 bits."""
        return SLOWER_ROWS * 2.0 * sum(1.5 * width for width, _ in _projections(model))


def _projections(model: ModelSpec) -> list[tuple[float, int]]:
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
