"""Shapes of decoder-only models whose decode step this package can run: dense MLP, grouped-query attention, rotary positions.

Mixtures of experts, latent attention and linear attention are refused by name rather than approximated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; `hidden` and `ffn` are widths, `ffn` of each half of the gated MLP."""

    layers: int
    hidden: int
    heads_q: int
    heads_kv: int
    head_dim: int
    ffn: int
    vocab: int
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    rope_theta: float = 1e6
    eps: float = 1e-6

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Shape:
        """A shape from a mapping with these field names; `ValueError` names one that is missing or unknown."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"shape: {unknown[0]} is not something this decode step can run; known: {', '.join(sorted(known))}")
        missing = [f.name for f in fields(cls) if f.name not in values and f.name in REQUIRED]
        if missing:
            raise ValueError(f"shape: {missing[0]} is missing")
        return cls(**values)  # type: ignore[arg-type]

    @property
    def qkv_rows(self) -> int:
        return (self.heads_q + 2 * self.heads_kv) * self.head_dim

    @property
    def weights_read(self) -> int:
        """Matrix elements one step reads: every layer and the output head; of the input embedding only a row per sequence."""
        attention = self.hidden * (self.qkv_rows + self.heads_q * self.head_dim)
        return self.layers * (attention + 3 * self.hidden * self.ffn) + self.vocab * self.hidden

    @property
    def kv_per_token(self) -> int:
        """Cache elements per token, keys and values, all layers."""
        return 2 * self.layers * self.heads_kv * self.head_dim


REQUIRED = ("layers", "hidden", "heads_q", "heads_kv", "head_dim", "ffn", "vocab")

# Sizes as the models' public configuration files give them.
SHAPES = {
    "Qwen2.5-0.5B": Shape(24, 896, 14, 2, 64, 4864, 151936, qkv_bias=True, tied_embeddings=True),
    "Qwen2.5-1.5B": Shape(28, 1536, 12, 2, 128, 8960, 151936, qkv_bias=True, tied_embeddings=True),
    "Qwen2.5-7B": Shape(28, 3584, 28, 4, 128, 18944, 152064, qkv_bias=True),
    "Qwen2.5-14B": Shape(48, 5120, 40, 8, 128, 13824, 152064, qkv_bias=True),
    "Qwen3-8B": Shape(36, 4096, 32, 8, 128, 12288, 151936, qk_norm=True),
    "Llama-3.1-8B": Shape(32, 4096, 32, 8, 128, 14336, 128256, rope_theta=5e5, eps=1e-5),
    "Mistral-7B": Shape(32, 4096, 32, 8, 128, 14336, 32768, eps=1e-5),
}
