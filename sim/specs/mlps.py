"""MLPs: dense or a mixture of experts, gated or not; none for layers that only mix tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sim.specs.blocks import Absent, Matrix, elements


def _mlp(path: str, hidden: int, inner: int, gated: bool) -> tuple[Matrix, ...]:
    """Up (and gate) and down projections of one MLP under `path`."""
    if not inner:
        return ()
    up = Matrix(f"{path}.up_proj", inner, hidden)
    gate = (Matrix(f"{path}.gate_proj", inner, hidden),) if gated else ()
    return (*gate, up, Matrix(f"{path}.down_proj", hidden, inner))


def _bias(hidden: int, inner: int, gated: bool) -> int:
    return (2 if gated else 1) * inner + hidden


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """MLP of up and down projections, with a gate unless `gated` is false."""

    intermediate: int
    bias: bool = False
    gated: bool = True
    extra_params: int = 0

    kind: Literal["dense"] = field(default="dense", init=False)

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        return _mlp("mlp", hidden, self.intermediate, self.gated)

    def vectors(self, hidden: int) -> int:
        return _bias(hidden, self.intermediate, self.gated) * self.bias + self.extra_params

    def params(self, hidden: int) -> int:
        return elements(self.matrices(hidden)) + self.vectors(hidden)

    def active_params(self, hidden: int) -> int:
        return self.params(hidden)


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """Mixture of experts: a router picks `top_k` of `experts` per token; shared experts see every token.

    `latent` is the width that experts work in where it is not the hidden size: two projections lead there and back.
    """

    experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    gated: bool = True
    latent: int | None = None
    idle_experts: int = 0  # that the router may choose and that compute nothing
    extra_params: int = 0

    kind: Literal["moe"] = field(default="moe", init=False)

    def expert_matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Of one routed expert."""
        return _mlp("mlp.experts.0", self.latent or hidden, self.intermediate, self.gated)

    def expert_params(self, hidden: int) -> int:
        bias = _bias(hidden, self.intermediate, self.gated) if self.expert_bias else 0
        return elements(self.expert_matrices(hidden)) + bias

    def expert_bytes(self, hidden: int, weight_bytes: float, expert_bits: float | None) -> float:
        """Bytes of one routed expert. A precision fixed by the checkpoint (`expert_bits`) is that of its matrices, not of its biases."""
        matrices = elements(self.expert_matrices(hidden))
        fixed = expert_bits / 8 if expert_bits else weight_bytes
        return matrices * fixed + (self.expert_params(hidden) - matrices) * weight_bytes

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Read for every token: router, shared experts and the way into the experts' width."""
        latent = (
            (Matrix("mlp.fc1_latent_proj", self.latent, hidden), Matrix("mlp.fc2_latent_proj", hidden, self.latent)) if self.latent else ()
        )
        return (
            Matrix("mlp.gate", self.experts + self.idle_experts, hidden, kept=True),
            *latent,
            *_mlp("mlp.shared_experts", hidden, self.shared_intermediate, self.gated),
            *((Matrix("mlp.shared_expert_gate", 1, hidden, kept=True),) if self.shared_gate else ()),
        )

    def vectors(self, hidden: int) -> int:
        return (self.experts + self.idle_experts) * self.router_bias + self.extra_params

    def always_params(self, hidden: int) -> int:
        return elements(self.matrices(hidden)) + self.vectors(hidden)

    def params(self, hidden: int) -> int:
        return self.experts * self.expert_params(hidden) + self.always_params(hidden)

    def active_params(self, hidden: int) -> int:
        return self.top_k * self.expert_params(hidden) + self.always_params(hidden)


@dataclass(frozen=True, slots=True)
class NoMlp(Absent):
    """A layer that only mixes tokens (Nemotron-H, Mamba)."""

    kind: Literal["none"] = field(default="none", init=False)

    def active_params(self, hidden: int) -> int:
        return 0


Mlp = DenseMlp | MoeMlp | NoMlp
