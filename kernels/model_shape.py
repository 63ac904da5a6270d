"""Model shape and layer weights of a dense decoder: grouped-query attention, gated MLP, rotary positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Shape:
    """Sizes of a dense decoder: grouped-query attention, gated MLP (`ffn` wide in each half), rotary positions."""

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


@dataclass(frozen=True)
class LayerShape:
    """Weights of a layer: w_qkv [(HQ + 2 HKV) D, H], w_o [H, HQ D], w_up [2 F, H] gate rows first, w_down [H, F]."""

    norm_attention: torch.Tensor
    w_qkv: torch.Tensor
    b_qkv: torch.Tensor | None
    norms_qk: tuple[torch.Tensor, torch.Tensor] | None
    w_o: torch.Tensor
    norm_mlp: torch.Tensor
    w_up: torch.Tensor
    w_down: torch.Tensor

    @classmethod
    def random(cls, s: Shape, draw: Callable[..., torch.Tensor]) -> LayerShape:
        """Weights drawn by `draw(*size, scale=, bias=)`, scaled so that activations keep their size."""
        narrow = s.heads_q * s.head_dim
        return cls(
            draw(s.hidden, scale=0.1, bias=1.0),
            draw(s.qkv_rows, s.hidden, scale=s.hidden**-0.5),
            draw(s.qkv_rows, scale=0.1) if s.qkv_bias else None,
            tuple(draw(s.head_dim, scale=0.1, bias=1.0) for _ in range(2)) if s.qk_norm else None,
            draw(s.hidden, narrow, scale=narrow**-0.5),
            draw(s.hidden, scale=0.1, bias=1.0),
            draw(2 * s.ffn, s.hidden, scale=s.hidden**-0.5),
            draw(s.hidden, s.ffn, scale=s.ffn**-0.5),
        )
