"""Layers with a dense MLP among experts, and the sizes of dense, routed and shared MLPs, by the fields that say it."""

from __future__ import annotations

from sim.specs.fields import Fields
from sim.specs.stacks import numbers


def dense_layers(c: Fields, layers: int) -> set[int]:
    """Layers whose MLP is dense; all of them where a configuration has no experts. Raises UsageError naming a field of another length."""
    everything = set(range(layers))
    if not c.has("num_experts") or c.int("num_experts", minimum=0) <= 1:
        return everything
    if c.has("mlp_layer_types"):
        kinds = c.texts("mlp_layer_types", ("dense", "sparse", "moe", "hash_moe"))
        if len(kinds) != layers:
            raise c.fail("mlp_layer_types", f"has {len(kinds)} entries for {layers} layers")
        return {layer for layer, kind in enumerate(kinds) if kind == "dense"}
    if isinstance(c.data.get("moe_layer_freq"), list):
        return {layer for layer, sparse in enumerate(numbers(c, "moe_layer_freq")) if not sparse}
    if c.has("moe_layers_enum"):
        given = c.data["moe_layers_enum"]
        found = given.split(",") if isinstance(given, str) else given
        return everything - {int(layer) for layer in found if str(layer).strip().isdigit()}
    if c.has("expert_layer_period"):
        period, offset = c.int("expert_layer_period"), c.int("expert_layer_offset", 0, minimum=0)
        return {layer for layer in everything if layer % period != offset}
    if c.has("moe_layer_start_index"):
        first, every = c.int("moe_layer_start_index", minimum=0), c.int("moe_layer_interval", 1)
        last = c.int("moe_layer_end_index", layers - 1) if c.data.get("moe_layer_end_index", -1) != -1 else layers - 1
        return {layer for layer in everything if not (first <= layer <= last and (layer + 1) % every == 0)}
    first = max(c.int(name, 0, minimum=0) for name in ("first_k_dense_replace", "num_dense_layers"))
    every = c.int("moe_layer_freq" if c.has("moe_layer_freq") else "decoder_sparse_step", 1)
    shifted = 0 if c.has("moe_layer_freq") else 1
    only = set(numbers(c, "mlp_only_layers"))
    return {layer for layer in everything if layer < first or (layer + shifted) % every or layer in only}


def dense_size(c: Fields, kind: str) -> int:
    """Width of a dense MLP; LFM2 rounds two thirds of what is stated up to a multiple."""
    name = next((name for name in ("dense_intermediate_size", "prefix_dense_intermediate_size") if c.has(name)), "intermediate_size")
    size = c.int(name)
    if kind == "lfm2" and c.bool("block_auto_adjust_ff_dim", True):
        size = int(c.positive("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
        multiple = c.int("block_multiple_of", 256)
        size = multiple * -(-size // multiple)
    if kind == "granitemoehybrid":
        size = c.int("shared_intermediate_size", size)
    if kind == "recurrent_gemma":
        size //= 2
    return size


def expert_size(c: Fields) -> int:
    """Width of one routed expert."""
    return c.int("moe_intermediate_size" if c.has("moe_intermediate_size") else "intermediate_size")


def shared_size(c: Fields) -> int:
    """Width of all shared experts together; 0 without."""
    count = c.int("n_shared_experts", 0, minimum=0)
    if c.has("moe_shared_expert_intermediate_size"):
        return c.int("moe_shared_expert_intermediate_size", minimum=0) * (count if c.has("n_shared_experts") else 1)
    for name in ("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim"):
        if c.has(name):
            return c.int(name, minimum=0)
    return count * expert_size(c) if count else 0
