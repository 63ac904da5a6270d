"""Looped decoders: layers whose weights are stored once and run several times for a token, each time with a KV cache of its own."""

from __future__ import annotations

from dataclasses import replace

from sim.specs.context import context_length, started_length
from sim.specs.fields import Fields
from sim.specs.mixers import Attention, NoMixer
from sim.specs.mlps import DenseMlp, NoMlp
from sim.specs.model import LayerGroup, ModelSpec
from sim.specs.stacks import layer_count


def _spec(c: Fields, layers: list[tuple[LayerGroup, int]], tables: int, head_bias: bool, note: str) -> ModelSpec:
    """A stack of (layers, times that each runs): read and cached every time, stored once."""
    hidden = c.int("hidden_size")
    stored_once = sum((times - 1) * group.count * group.layer_params(hidden) for group, times in layers)
    return ModelSpec(
        name="",
        hidden=hidden,
        vocab=c.int("vocab_size"),
        groups=tuple(replace(group, count=group.count * times) for group, times in layers),
        tied_embeddings=c.bool("tie_word_embeddings", False),
        max_context=context_length(c),
        started=started_length(c),
        extra_params=tables - stored_once,
        final_norm=0,
        head_bias=head_bias,
        notes=(note,),
    )


def hrm_text(c: Fields) -> ModelSpec:
    """HRM-Text: a fast and a slow stack; each of `H_cycles` rounds runs the fast one `L_cycles` times and the slow one once."""
    heads, bias = c.int("num_attention_heads"), c.bool("attention_bias", False)
    slow, fast = c.int("H_cycles", 2), c.int("L_cycles", 3)
    count = c.int("num_layers_per_stack") if c.has("num_layers_per_stack") else layer_count(c)
    attention = Attention(heads, heads, c.int("head_dim", 128), qkv_bias=bias, out_bias=bias, output_gate=True)
    layer = LayerGroup(count, attention, DenseMlp(c.int("intermediate_size"), c.bool("mlp_bias", False)), norm_width=0)
    note = "prompts attend both ways, which doubles their attention; counted as causal."
    return _spec(c, [(layer, slow * fast), (layer, slow)], c.int("hidden_size"), False, note)


def dory(c: Fields) -> ModelSpec:
    """Dory: layers are attention or MLP; those between input and output layers run `n_recurrent_loops` times."""
    if c.text("recurrent_kv_cache_mode", "per_loop") != "per_loop":
        raise c.fail("recurrent_kv_cache_mode", "is unsupported unless per_loop")
    layers, loops, before = layer_count(c), c.int("n_recurrent_loops", 1), c.int("n_input_layers", 0, minimum=0)
    after = layers - c.int("n_output_layers", 0, minimum=0)
    words = c.texts("layer_types", ("mlp", "full_attention", "sliding_attention"))
    words = words or ["mlp" if i % 2 else "full_attention" if i % 8 == 6 else "sliding_attention" for i in range(layers)]
    if len(words) != layers:
        raise c.fail("layer_types", f"has {len(words)} entries for {layers} layers")
    heads, dim, inner = c.int("num_attention_heads"), c.int("head_dim"), c.int("intermediate_size")
    full = Attention(heads, c.int("num_key_value_heads"), dim, output_gate=True, extra_params=2 * heads * dim)
    near = replace(full, window=c.int("sliding_window")) if "sliding_attention" in words else full
    kinds = {
        "mlp": LayerGroup(1, NoMixer(), DenseMlp(inner, extra_params=2 * inner), norms=1),
        "full_attention": LayerGroup(1, full, NoMlp(), norms=1),
        "sliding_attention": LayerGroup(1, near, NoMlp(), norms=1),
    }
    times = [loops if before <= layer < after else 1 for layer in range(layers)]
    at = list(zip(words, times, strict=True))
    groups = [(replace(kinds[word], count=at.count((word, n))), n) for word, n in dict.fromkeys(at)]
    return _spec(c, groups, 0, True, "vLLM runs it on one GPU alone.")
