"""Traits of an architecture that configurations do not state: the flags of its building blocks, by model_type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Traits:
    """Flags of one architecture's blocks. None leaves a bias to the configuration's own field, False where it has none.

    norms: hidden-size norms of a layer that has mixer and MLP; norm_width: vectors in each (2 with a bias, 0 without weights)
    gated: MLP with a gate
    qk_norm: "" none, "head" one vector for all heads, "key" for keys alone, "full" one for the whole width, "heads" one for each head
    sinks: "" none, "all", "sliding"; gate of attention's output: "" none, "head", "full"; linear: what a recurrent layer is
    every: full attention in each so many layers where no list says it; router_bias: of experts' choice, kept in the checkpoint
    expert_bias: of experts' own projections
    needs: fields, by their commonest name, without which a file is refused
    defaults: fields that published files leave out and the reference implementation fills in
    """

    norms: int = 2
    norm_width: int = 1
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    mlp_bias: bool | None = None
    gated: bool = True
    qk_norm: str = ""
    sinks: str = ""
    gate: str = ""
    linear: str = ""
    every: int = 0
    tied: bool = False
    head_bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    expert_bias: bool = False
    final_norm: bool = True
    needs: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


_DATA: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "traits.json").read_text(encoding="utf-8"))
# By model_type: decoders of Llama's kind, of GPT-2's time, mixtures of experts, latent attention, recurrent layers beside attention.
TRAITS = {kind: Traits(**flags) for kind, flags in _DATA["traits"].items()}
# Text parts that are another architecture by another name.
SAME: dict[str, str] = _DATA["same"]
