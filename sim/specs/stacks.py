"""Layers of a configuration: how many there are, of which kinds, and lists that speak of them."""

from __future__ import annotations

from collections.abc import Callable

from sim.specs.fields import Fields

MAX_LAYERS = 4096
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


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
