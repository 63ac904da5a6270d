"""Decoders by their building blocks: attention kinds, recurrences, dense and expert MLPs, put together as a configuration says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.specs import recurrences
from sim.specs.blocks import Matrix
from sim.specs.context import context_length
from sim.specs.fields import Fields
from sim.specs.layer_plan import FULL, LINEAR, MLP, MOE, SLIDING, SPARSE, layer_plan, stated_layers
from sim.specs.mixers import Attention, Indexer, LatentAttention, Mixer, NoMixer
from sim.specs.mlps import DenseMlp, Mlp, MoeMlp, NoMlp
from sim.specs.model import ModelSpec
from sim.specs.sparse_layers import dense_layers, dense_size, expert_size, shared_size
from sim.specs.stacks import layer_count, stacked
from sim.specs.synonyms import one_spelling
from sim.specs.traits import Traits

_HIDDEN = {"gpt2": 4, "gpt_bigcode": 4, "gptj": 4, "bloom": 4, "mpt": 4, "falcon": 4}  # MLP over hidden where no field says it


def read_blocks(fields: Fields, t: Traits, kind: str) -> ModelSpec:
    """The ModelSpec (unnamed) of a configuration of architecture `kind`. Raises UsageError naming a field or block that cannot be read."""
    c = one_spelling(fields, dict(t.defaults))
    if missing := next((name for name in t.needs if name not in c.data), None):
        raise c.fail(missing, "is missing")
    if not c.has("intermediate_size") and kind in _HIDDEN:
        c = Fields({**c.data, "intermediate_size": _HIDDEN[kind] * c.int("hidden_size")}, c.where, c.prefix)
    if not c.has("num_hidden_layers") and (stated := stated_layers(c)):
        c = Fields({**c.data, "num_hidden_layers": stated}, c.where, c.prefix)
    layers = layer_count(c)
    plan = layer_plan(c, t, layers)
    dense = dense_layers(c, layers)
    exclusive = MLP in plan or MOE in plan  # layers are mixers or MLPs, not both
    members: dict[tuple[Mixer, Mlp, int], list[int]] = {}
    for layer, what in enumerate(plan):
        at = _of_layer(c, layer)
        mixer: Mixer = NoMixer() if what in (MLP, MOE) else _mixer(at, t, what, kind, layer)
        if kind == "falcon_h1":  # attention and Mamba-2 side by side in every layer
            members.setdefault((_mixer(at, t, FULL, kind, layer), NoMlp(), 0), []).append(layer)
            mixer = _recurrent(at, t, kind)
        has_mlp = what in (MLP, MOE) if exclusive else kind not in ("mamba", "mamba2", "falcon_mamba")
        mlp: Mlp = _mlp(at, t, what == MLP or layer in dense, kind) if has_mlp else NoMlp()
        members.setdefault((mixer, mlp, 4 if c.bool("sandwich_norm", False) else t.norms), []).append(layer)
    hidden = c.int("hidden_size")
    around, vectors, last = _hyper_connections(c, kind, hidden)
    return stacked(
        c,
        members,
        t.tied,
        {"norm_width": t.norm_width, "extra": around, "extra_params": vectors},
        final_norm=t.norm_width if t.final_norm else 0,
        head_bias=c.bool("lm_head_bias", t.head_bias),
        extra_params=_tables(c, kind, hidden) + last + _image_experts(fields, t, hidden, members),
        notes=_notes(c),
    )


def _image_experts(fields: Fields, t: Traits, hidden: int, members: Mapping[tuple[Mixer, Mlp, int], list[int]]) -> int:
    """Parameters of the experts that take a picture's tokens (ERNIE VL: the second of each pair of sizes), and of their routers."""
    inner, count = fields.data.get("moe_intermediate_size"), fields.data.get("moe_num_experts")
    if not isinstance(inner, list) or len(inner) < 2:
        return 0
    layers = sum(len(at) for (_, mlp, _), at in members.items() if mlp.kind == "moe")
    experts = count[1] if isinstance(count, list) and len(count) > 1 else fields.int("moe_num_experts")
    if not all(type(size) is int and 0 < size < 2**40 for size in (experts, inner[1])):
        raise fields.fail("moe_intermediate_size", f"must be whole numbers above 0, not {inner!r}")
    return layers * int(experts) * (3 * hidden * int(inner[1]) + hidden + t.router_bias)


def _hyper_connections(c: Fields, kind: str, hidden: int) -> tuple[tuple[Matrix, ...], int, int]:
    """(matrices and vectors of a layer, parameters after the last) of streams that mix around every block."""
    if not c.has("hc_mult"):
        return (), 0, 0
    streams = c.int("hc_mult")
    mixes, scales = (2 * streams, 2) if kind == "hy_v4" else ((2 + streams) * streams, 3)
    around = tuple(Matrix(f"{block}_hc.fn", mixes, streams * hidden, kept=True) for block in ("attn", "ffn"))
    return around, 2 * (mixes + scales), streams * (streams * hidden + 1) + 1 if kind == "hy_v4" else 0


def _of_layer(c: Fields, layer: int) -> Fields:
    """The fields of one layer: `per_layer_config` overrides, and lists of one entry a layer."""
    own: dict[str, Any] = {}
    given = c.data.get("per_layer_config") or c.data.get("block_configs")
    if isinstance(given, list) and len(given) > layer and isinstance(given[layer], dict):
        own = dict(one_spelling(Fields(given[layer], c.where, c.prefix), {}).data)
        own = {name: value for name, value in own.items() if value is not None}
    if isinstance(windows := c.data.get("window_sizes"), list) and len(windows) > layer and windows[layer]:
        own["sliding_window"] = windows[layer][0] + 1 if windows[layer][0] > 0 else None
    spaced = c.data.get("interleaved_sliding_window")
    if isinstance(spaced, list) and spaced:
        own["sliding_window"] = spaced[layer % len(spaced)]
    if isinstance(given, dict):
        own |= next((dict(value) for key, value in given.items() if str(key).isdigit() and int(key) == layer), {})
    heads = c.data.get("num_attention_heads_per_layer")
    if isinstance(heads, list) and len(heads) > layer:
        own["num_attention_heads"] = heads[layer]
    return Fields({**c.data, **own}, c.where, c.prefix) if own else c


def _bias(c: Fields, given: bool | None, name: str) -> bool:
    return c.bool(name, False) if given is None else given


def _mixer(c: Fields, t: Traits, what: str, kind: str, layer: int) -> Mixer:
    if what == LINEAR:
        return _recurrent(c, t, kind)
    if c.has("kv_lora_rank"):
        return _latent(c, t, what, layer)
    heads = c.int("num_attention_heads")
    kv_heads, head_dim, window, value_dim = c.int("num_key_value_heads", heads), 0, None, c.data.get("v_head_dim")
    if kind == "falcon" and not c.bool("new_decoder_architecture", False):
        kv_heads = 1 if c.bool("multi_query", True) else heads
    if kind == "gpt_bigcode" and c.bool("multi_query", True):
        kv_heads = 1
    if what == SLIDING:  # some have other heads there
        other = c.data.get("attention_other_setting") or {}
        heads = c.int("swa_num_attention_heads", int(other.get("num_attention_heads", heads)))
        kv_heads = c.int("swa_num_key_value_heads", int(other.get("num_attention_groups", kv_heads)))
        head_dim, value_dim = c.int("swa_head_dim", 0, minimum=0), c.data.get("swa_v_head_dim", value_dim)
        size = c.int("sliding_window")
        window = size if size < context_length(c) else None
    if heads % kv_heads:
        raise c.fail("num_key_value_heads", f"must divide num_attention_heads = {heads}, not {kv_heads}")
    if not head_dim and not c.has("head_dim") and c.int("hidden_size") % heads:
        raise c.fail("head_dim", f"is missing and hidden_size is not a multiple of num_attention_heads = {heads}")
    head_dim = head_dim or c.int("head_dim", c.int("hidden_size") // heads)
    norm = _qk_norm(c, t)
    qkv = _bias(c, t.qkv_bias, "attention_bias")
    out = "attention_out_bias" if c.has("attention_out_bias") else "attention_bias"
    full_gate = t.gate == "full" or c.bool("attention_output_gate", False) or t.gate == "query"
    extra = 4 * head_dim if norm and kind == "persimmon" else 0  # their biases
    sparse = c.data.get("sparse_attention_config") if what == SPARSE or kind == "minimax_m3" else None
    if isinstance(sparse, dict) and _is_sparse(sparse, layer):
        extra += _selector_params(Fields(sparse, c.where, "sparse_attention_config"), c.int("hidden_size"))
    return Attention(
        heads,
        kv_heads,
        head_dim,
        window,
        qkv_bias=qkv,
        out_bias=_bias(c, t.out_bias, out) if t.out_bias is not None or t.qkv_bias is None else qkv,
        qk_norm=bool(norm),
        qk_norm_elements={"key": head_dim, "full": (heads + kv_heads) * head_dim, "heads": (heads + kv_heads) * head_dim}.get(norm),
        output_gate=full_gate,
        sinks=t.sinks == "all" or (t.sinks == "sliding" and what == SLIDING and c.bool("add_swa_attention_sink_bias", True)),
        value_dim=int(value_dim) if value_dim and value_dim != head_dim else None,
        head_gate=t.gate == "head" or c.bool("use_head_wise_attn_gate", False),
        extra_params=(extra // 2 if kind == "persimmon" else extra) + _of_attention(c, kind, heads, kv_heads, head_dim, what),
        q_rank=c.int("share_q_dim") if c.has("share_q_dim") else None,
    )


def _of_attention(c: Fields, kind: str, heads: int, kv_heads: int, head_dim: int, what: str) -> int:
    """Parameters of one architecture's attention alone: Inkling's relative positions and short convolutions, Beam's bias of its gate."""
    if c.has("param_sink_number"):  # Pangu's: keys, and values where it says so
        width = head_dim * (1 + c.bool("param_sink_with_value", False))
        return c.int("param_sink_number", minimum=0) * kv_heads * width
    if kind != "inkling_text":
        return heads * (kind == "beam")
    hidden, rank, kernel = c.int("hidden_size"), c.int("d_rel"), c.int("conv_kernel_size", 4)
    extent = c.int("sliding_window") if what == SLIDING else c.int("rel_extent")
    return heads * rank * hidden + rank * extent + 2 * kv_heads * head_dim * kernel + 2 * hidden * kernel


def _qk_norm(c: Fields, t: Traits) -> str:
    """Norms of queries and keys, by the architecture or by a field of its own."""
    if t.qk_norm == "field":
        return "head" if c.bool("use_qk_norm", False) else ""
    if t.qk_norm in ("", "head") and c.has("qk_layernorm"):
        return "heads" if c.bool("qk_layernorm", False) and not t.qk_norm else t.qk_norm if c.bool("qk_layernorm", False) else ""
    if not t.qk_norm and c.bool("use_qk_norm", False):
        return "heads"
    return t.qk_norm


def _is_sparse(sparse: dict[str, Any], layer: int) -> bool:
    where = sparse.get("sparse_attention_freq")
    return bool(where[layer]) if isinstance(where, list) and len(where) > layer else True


def _selector_params(s: Fields, hidden: int) -> int:
    """MiniMax M3's block selector: index queries and one index key, each with a norm."""
    heads, dim = s.int("sparse_num_index_heads", 4), s.int("sparse_index_dim", 128)
    return hidden * (heads * dim + dim) + 2 * dim


def _latent(c: Fields, t: Traits, what: str, layer: int) -> LatentAttention:
    indexer = None
    if c.has("index_topk") and what != SLIDING:
        kinds = c.texts("indexer_types", ("full", "shared"))
        shared = len(kinds) > layer and kinds[layer] == "shared"
        indexer = Indexer(c.int("index_n_heads"), c.int("index_head_dim"), c.int("index_topk"), shared, c.int("index_kpool", 1))
    rank = c.int("q_lora_rank") if c.has("q_lora_rank") else None
    return LatentAttention(
        heads=c.int("num_attention_heads"),
        q_rank=rank,
        kv_rank=c.int("kv_lora_rank"),
        nope_dim=c.int("qk_nope_head_dim"),
        rope_dim=c.int("qk_rope_head_dim", minimum=0),
        v_dim=c.int("v_head_dim"),
        indexer=indexer,
        bias=_bias(c, t.qkv_bias, "attention_bias"),
        head_gate=t.gate == "head",
        output_gate=t.gate == "full" or c.bool("mla_use_output_gate", False),
        extra_params=c.int("num_attention_heads") * (t.sinks == "all"),
    )


def _recurrent(c: Fields, t: Traits, kind: str) -> Mixer:
    """The recurrence of this architecture. Mamba-2 has its sizes under two sets of names."""
    from sim.specs.model import GatedDeltaNet

    hidden = c.int("hidden_size")
    if t.linear == "gdn":
        return GatedDeltaNet(
            c.int("linear_num_key_heads"),
            c.int("linear_num_value_heads"),
            c.int("linear_key_head_dim"),
            c.int("linear_value_head_dim"),
            c.int("linear_conv_kernel_dim", 4),
        )
    lightning = t.linear == "lightning" or (
        kind == "bailing_hybrid" and not (c.has("short_conv_kernel_size") or c.has("linear_conv_kernel_dim"))
    )
    if t.linear == "kda" and not lightning:
        own = c.section("linear_attn_config") if c.has("linear_attn_config") else c
        heads = own.int("num_heads" if own.has("num_heads") else "linear_num_heads", c.int("num_attention_heads"))
        dim = own.int("head_dim" if own is not c else "linear_head_dim", 128)
        width = own.int("short_conv_kernel_size", 4)
        return recurrences.delta_attention(
            hidden, heads, dim, width, low_rank=kind != "bailing_hybrid" and not c.bool("no_kda_lora", False)
        )
    if lightning:  # Ring 2.5 calls itself as Ling 3 does, whose layers convolve
        heads = c.int("num_attention_heads")
        return recurrences.lightning(hidden, heads, c.int("head_dim", hidden // heads))
    if t.linear == "conv":
        return recurrences.short_conv(hidden, c.int("num_attention_heads"), c.int("conv_L_cache", 3), c.bool("conv_bias", False))
    if t.linear == "lru":
        return recurrences.lru(hidden, c.int("num_attention_heads"), c.int("lru_width", hidden), c.int("conv1d_width", 4))
    if t.linear == "mamba":
        inner = c.int("intermediate_size") if kind != "jamba" and c.has("intermediate_size") else _expand(c) * hidden
        rank = c.int("time_step_rank" if c.has("time_step_rank") else "mamba_dt_rank", -(-hidden // 16))
        state, conv = c.int("state_size" if c.has("state_size") else "mamba_d_state", 16), _conv(c)
        return recurrences.mamba(hidden, inner, rank, state, conv, _conv_bias(c), norms=kind == "jamba")
    return _mamba2(c, kind, hidden)


def _mamba2(c: Fields, kind: str, hidden: int) -> Mixer:
    names = {
        "heads": ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads"),
        "dim": ("mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim"),
        "groups": ("mamba_n_groups", "mamba_ngroups", "n_groups"),
        "state": ("ssm_state_size", "mamba_d_state", "state_size"),
    }
    found = {what: next((name for name in options if c.has(name)), options[0]) for what, options in names.items()}
    heads = c.int(found["heads"])
    inner = c.int("mamba_d_ssm", _expand(c) * hidden)
    dim = c.int(found["dim"], inner // heads) if isinstance(c.data.get(found["dim"]), int) else inner // heads
    norm = c.bool("mamba_rms_norm", True)
    bias = c.bool("mamba_proj_bias" if c.has("mamba_proj_bias") else "use_bias", False)
    return recurrences.mamba2(
        hidden, heads, dim, c.int(found["groups"], 1), c.int(found["state"], 128), _conv(c), _conv_bias(c), bias, norm
    )


def _expand(c: Fields) -> int:
    return c.int("mamba_expand" if c.has("mamba_expand") else "expand", 2)


def _conv(c: Fields) -> int:
    return c.int("conv_kernel" if c.has("conv_kernel") else "mamba_d_conv", 4)


def _conv_bias(c: Fields) -> bool:
    return c.bool("mamba_conv_bias" if c.has("mamba_conv_bias") else "use_conv_bias", True)


def _mlp(c: Fields, t: Traits, dense: bool, kind: str) -> Mlp:
    bias = _bias(c, t.mlp_bias, "mlp_bias")
    if dense:
        return DenseMlp(dense_size(c, kind), bias, t.gated, extra_params=2 if kind == "apertus" else 0)
    experts, top_k = c.int("num_experts"), c.int("num_experts_per_tok", 1)
    if top_k > experts:
        raise c.fail("num_experts_per_tok", f"must be at most num_experts = {experts}, not {top_k}")
    latent = next((name for name in ("moe_latent_size", "routed_expert_hidden_size") if c.has(name)), None)
    return MoeMlp(
        experts,
        top_k,
        expert_size(c),
        shared_intermediate=shared_size(c),
        shared_gate=t.shared_gate,
        router_bias=t.router_bias,
        expert_bias=t.expert_bias,
        gated=t.gated,
        latent=c.int(latent) if latent else None,
        idle_experts=c.int("n_shared_experts", 0) if kind == "inkling_text" else 0,
        extra_params=_of_experts(c, kind),
    )


def _of_experts(c: Fields, kind: str) -> int:
    """Parameters of one architecture's experts alone: Inkling's scale (its shared ones have no bias), A.X's norm behind the mixture."""
    if kind == "inkling_text":
        return 1 - c.int("n_shared_experts", 0, minimum=0)
    return c.int("hidden_size") if kind == "axk1" else 0


def _tables(c: Fields, kind: str, hidden: int) -> int:
    """Parameters beside layers, looked up or read once: learned positions, a norm of the embedding."""
    if kind in ("gpt2", "gpt_bigcode"):
        return c.int("n_positions") * hidden
    if kind == "opt":
        return (c.int("max_position_embeddings") + 2) * hidden
    return {"bloom": 2 * hidden, "inkling_text": hidden}.get(kind, 0)


def _notes(c: Fields) -> tuple[str, ...]:
    """Parts of a configuration that are read and not priced."""
    notes = []
    drafts = next((name for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules") if c.data.get(name)), None)
    if drafts:
        notes.append(f"{drafts}: multi-token-prediction layers are not loaded unless drafts are asked for, and not counted.")
    if c.has("sparse_attention_config"):
        notes.append("sparse_attention_config: weights of the block selector are counted, attention is priced as dense.")
    return tuple(notes)
