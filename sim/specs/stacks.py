"""Layers of a configuration: how many there are, of which kinds, lists that speak of them, and the stack that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sim.specs.context import context_length, started_length
from sim.specs.fields import Fields
from sim.specs.mixers import Mixer
from sim.specs.mlps import Mlp
from sim.specs.model import LayerGroup, ModelSpec

MAX_LAYERS = 4096
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


def stacked(
    c: Fields, members: Mapping[tuple[Mixer, Mlp, int], list[int]], tied: bool = False, each: Mapping[str, Any] | None = None, **more: Any
) -> ModelSpec:
    """The ModelSpec (unnamed) of layers by (mixer, MLP, norms). `each` are further fields of every LayerGroup, `more` of the ModelSpec."""
    return ModelSpec(
        name="",
        hidden=c.int("hidden_size"),
        vocab=c.int("vocab_size"),
        groups=tuple(LayerGroup(len(at), *key, indices=tuple(at), **(each or {})) for key, at in members.items()),
        tied_embeddings=c.bool("tie_word_embeddings", tied),
        max_context=context_length(c),
        started=started_length(c),
        **more,
    )


def layer_count(c: Fields) -> int:
    """num_hidden_layers, bounded so that a wrong file cannot make us build a list of a billion layers."""
    layers = c.int("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise c.fail("num_hidden_layers", f"must be at most {MAX_LAYERS}, not {layers}")
    return layers


def layer_kinds(c: Fields, allowed: tuple[str, ...], default: Callable[[int], str]) -> list[str]:
    """The kind of each layer: `layer_types` when given, else the architecture's rule."""
    layers = layer_count(c)
    kinds = c.texts("layer_types", allowed) or [default(i) for i in range(layers)]
    if len(kinds) != layers:
        raise c.fail("layer_types", f"has {len(kinds)} entries for {layers} layers")
    return kinds


def numbers(c: Fields, name: str) -> list[int]:
    """A list of whole numbers that speak of layers; empty when absent."""
    values = c.data.get(name) or []
    if not isinstance(values, list) or not all(isinstance(i, int) for i in values):
        raise c.fail(name, f"must be a list of layer numbers, not {values!r}")
    return values
