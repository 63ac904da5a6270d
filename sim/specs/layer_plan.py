"""Kind of each layer of a configuration: full, sliding or sparse attention, recurrent, or an MLP alone."""

from __future__ import annotations

from collections.abc import Callable

from sim.specs.fields import Fields
from sim.specs.stacks import numbers
from sim.specs.traits import Traits

FULL, SLIDING, LINEAR, SPARSE, MLP, MOE = "full", "sliding", "linear", "sparse", "mlp", "moe"
# Words of `layer_types`, `layers_block_type`, `block_types`.
WORDS = {
    "full_attention": FULL,
    "attention": FULL,
    "hybrid": FULL,
    "global": FULL,
    "sliding_attention": SLIDING,
    "hybrid_sliding": SLIDING,
    "indexed_attention": SPARSE,
    "sparse_attention": SPARSE,
    "deepseek_sparse_attention": SPARSE,
    "minimax_m3_sparse": SPARSE,
    "linear_attention": LINEAR,
    "mamba": LINEAR,
    "mamba2": LINEAR,
    "recurrent": LINEAR,
    "conv": LINEAR,
    "short_conv": LINEAR,
    "kda": LINEAR,
    "mlp": MLP,
    "moe": MOE,
}
LETTERS = {"M": LINEAR, "*": FULL, "-": MLP, "E": MOE}


def layer_plan(c: Fields, t: Traits, layers: int) -> list[str]:
    """The kind of each layer, from whichever field says it. Raises UsageError naming an entry that is unknown."""
    for name in ("layer_types", "layers_block_type", "block_types"):
        if c.has(name):
            kinds = [WORDS[word] for word in c.texts(name, WORDS)]
            if name == "block_types":  # repeated over the depth
                kinds = [kinds[layer % len(kinds)] for layer in range(layers)]
            return _checked(c, name, kinds, layers)
    if isinstance(c.data.get("block_configs"), list):
        kinds = [str(block.get("block_type")) if isinstance(block, dict) else "" for block in c.data["block_configs"]]
        if unknown := set(kinds) - set(WORDS):
            raise c.fail("block_configs", f"has unknown block_type {min(unknown)!r} (known: {', '.join(WORDS)})")
        return _checked(c, "block_configs", [WORDS[kind] for kind in kinds], layers)
    if isinstance(c.data.get("window_sizes"), list):  # [left, right] of each layer, 0 or less for none
        return _checked(c, "window_sizes", [SLIDING if sides and sides[0] > 0 else FULL for sides in c.data["window_sizes"]], layers)
    if isinstance(spaced := c.data.get("interleaved_sliding_window"), list) and spaced:
        return [SLIDING if spaced[layer % len(spaced)] else FULL for layer in range(layers)]
    if c.has("hybrid_override_pattern"):
        return _checked(c, "hybrid_override_pattern", [_letter(c, letter) for letter in c.text("hybrid_override_pattern")], layers)
    if c.has("hybrid_layer_pattern"):
        return _checked(c, "hybrid_layer_pattern", [SLIDING if slides else FULL for slides in numbers(c, "hybrid_layer_pattern")], layers)
    if c.has("attn_type_list"):
        return _checked(c, "attn_type_list", [FULL if full else LINEAR for full in numbers(c, "attn_type_list")], layers)
    rule = _recurrent_rule(c, t, layers) if t.linear else _window_rule(c, t)
    return [rule(layer) for layer in range(layers)]


def stated_layers(c: Fields) -> int | None:
    """Number of layers of a list or pattern of blocks."""
    for name in ("layers_block_type", "block_configs", "hybrid_override_pattern", "layer_types"):
        given = c.data.get(name)
        if isinstance(given, (list, str)):
            return len(given)
    return None


def _letter(c: Fields, letter: str) -> str:
    if letter not in LETTERS:
        raise c.fail("hybrid_override_pattern", f"has unknown block {letter!r} (known: {', '.join(LETTERS)})")
    return LETTERS[letter]


def _checked(c: Fields, name: str, kinds: list[str], layers: int) -> list[str]:
    if len(kinds) != layers:
        raise c.fail(name, f"has {len(kinds)} entries for {layers} layers")
    return kinds


def _recurrent_rule(c: Fields, t: Traits, layers: int) -> Callable[[int], str]:
    """Attention among recurrent layers: at given indices, in each so many layers, or nowhere."""
    if c.has("linear_attn_config"):  # counted from one
        full = {i - 1 for i in numbers(c.section("linear_attn_config"), "full_attn_layers")}
        return lambda layer: FULL if layer in full else LINEAR
    for name in ("full_attn_idxs", "attn_layer_indices"):
        if c.has(name):
            given = set(numbers(c, name))
            return lambda layer: FULL if layer in given else LINEAR
    if c.has("attn_layer_period"):
        period, offset = c.int("attn_layer_period"), c.int("attn_layer_offset", 0, minimum=0)
        return lambda layer: FULL if layer % period == offset else LINEAR
    every = c.int("layer_group_size" if c.has("layer_group_size") else "full_attention_interval", t.every or MANY)
    return lambda layer: LINEAR if (layer + 1) % every else FULL


MANY = 2**20


def _window_rule(c: Fields, t: Traits) -> Callable[[int], str]:
    """Sliding windows where a size is given: all layers, or all but each so many."""
    if not c.bool("use_sliding_window", c.has("sliding_window")):
        return lambda layer: FULL
    if c.has("max_window_layers"):  # Qwen's: those from there on
        first = c.int("max_window_layers", minimum=0)
        return lambda layer: SLIDING if layer >= first else FULL
    pattern = c.data.get("sliding_window_pattern")
    if isinstance(pattern, str):  # LLLG
        if not pattern:
            raise c.fail("sliding_window_pattern", "is empty")
        return lambda layer: FULL if pattern[layer % len(pattern)] == "G" else SLIDING
    every = c.int("sliding_window_pattern", t.every) if pattern is not None else t.every
    if not every:
        return lambda layer: SLIDING
    return lambda layer: SLIDING if (layer + 1) % every else FULL
