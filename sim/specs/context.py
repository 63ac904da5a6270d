"""Context that a configuration declares, rotary scaling included."""

from __future__ import annotations

from collections.abc import Iterator

from sim.specs.fields import Fields

_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "max_sequence_length", "model_max_length")
# Rotary scalings whose factor is in max_position_embeddings already, or that only change frequencies.
_APART = ("default", "llama3", "longrope", "su", "mrope", "proportional")
_OF_ORIGINAL = ("yarn", "deepseek_yarn", "deepseek_llama_scaling")
# vLLM's first versions that start a model at less than it declares, where no length is said: LongRoPE's at its original length, whose
# frequencies suit short requests, and YaRN's at `max_position_embeddings`, taken as scaled already (its configs of 0.11.2 to 0.33 read)
OF_LONGROPE, OF_YARN = (0, 11), (0, 30)
NO_LIMIT = 2**20  # of a model whose configuration declares none (recurrent ones)


def context_length(c: Fields) -> int:
    """Tokens of context: the declared positions, times the factor of a rotary scaling that extends them.

    YaRN extends `original_max_position_embeddings`; a file may state the positions before or after: the larger holds.
    Raises UsageError naming the field.
    """
    name = next((name for name in _LENGTHS if c.has(name)), None)
    if name is None:
        recurrent = ("layer_types", "state_size", "block_types")
        return NO_LIMIT if any(map(c.has, recurrent)) else c.int(_LENGTHS[0])
    declared = c.int(name)
    return max([declared, *(_extended(rope, declared) for rope in _scalings(c))])


def beyond_context(name: str, declared: int, tokens: int) -> list[str]:
    """A sentence on more tokens than a model declares; none where it declares as many."""
    return [f"{name} declares {declared} tokens: {tokens} need rope scaling"] if tokens > declared else []


def started_length(c: Fields) -> tuple[int, tuple[int, int]] | None:
    """(tokens, version): what vLLM from that version on starts at, where that is less than the context declared."""
    name = next((name for name in _LENGTHS if c.has(name)), None)
    if name is None:
        return None
    declared = c.int(name)
    for rope in _scalings(c):
        kind = rope.text("rope_type" if rope.has("rope_type") else "type", "default")
        if kind in ("longrope", "su") and c.has("original_max_position_embeddings"):
            return c.int("original_max_position_embeddings"), OF_LONGROPE
        if kind in _OF_ORIGINAL and _extended(rope, declared) > declared:
            return declared, OF_YARN
    return None


def _scalings(c: Fields) -> Iterator[Fields]:
    """`rope_scaling` of older files, `rope_parameters` of newer ones, which may hold one for each kind of layer."""
    for field in ("rope_scaling", "rope_parameters"):
        if not c.has(field):
            continue
        rope = c.section(field)
        nested = [key for key, value in rope.data.items() if isinstance(value, dict)]
        yield from (rope.section(key) for key in nested) if nested else (rope,)


def _extended(rope: Fields, declared: int) -> int:
    kind = rope.text("rope_type" if rope.has("rope_type") else "type", "default")
    if kind in _APART or not rope.has("factor"):
        return 0
    factor = rope.positive("factor", maximum=1e6)
    if kind in _OF_ORIGINAL:
        return int(factor * rope.int("original_max_position_embeddings", 1))
    if kind in ("linear", "dynamic", "ntk"):
        return int(factor * declared)
    raise rope.fail("rope_type", f"is unsupported: {kind!r} (supported: {', '.join((*_APART, *_OF_ORIGINAL, 'linear', 'dynamic', 'ntk'))})")
