"""One spelling for fields that configurations spell in several ways."""

from __future__ import annotations

from typing import Any

from sim.specs.fields import Fields

_SPELT: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model", "model_dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "attention_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "multi_query_group_num", "kv_n_heads", "num_attention_groups"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab_size": ("padded_vocab_size",),
    "v_head_dim": ("v_channels",),
    "head_dim": ("kv_channels", "attention_head_dim"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_topk", "moe_k", "moe_top_k", "num_experts_per_token", "top_k_experts"),
    "moe_intermediate_size": ("expert_ffn_hidden_size",),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "q_lora_rank": (),
    "attention_bias": ("use_bias", "bias", "use_qkv_bias", "add_qkv_bias", "qkv_bias"),
    "mlp_bias": ("use_bias", "add_bias_linear"),
    "num_dense_layers": (),
    "tie_word_embeddings": ("tie_embedding_weights",),
    "sliding_window": ("sliding_window_size", "attention_window_size"),
}


def one_spelling(c: Fields, defaults: dict[str, Any]) -> Fields:
    """The same fields, each under the commonest of its names; `defaults` where a file leaves one out. Nothing given is overwritten."""
    nested = [c.data[name] for name in ("attn_config", "ffn_config") if isinstance(c.data.get(name), dict)]  # MPT's and DBRX's
    inner = {name: value for part in nested for name, value in part.items() if name not in c.data}
    c = Fields({**c.data, **inner}, c.where, c.prefix)
    data = {name: value for name, value in c.data.items() if value is not None or name == "q_lora_rank"}
    for name, others in _SPELT.items():
        if name not in data:
            found = next((data[other] for other in others if data.get(other) is not None), None)
            if found is not None:
                data[name] = found
    for name in ("num_experts", "moe_intermediate_size"):  # ERNIE VL: those of text, then those of images
        if isinstance(data.get(name), list) and data[name]:
            data[name] = data[name][0]
    if "head_dim" not in data and isinstance(data.get("qk_nope_dim"), int) and isinstance(data.get("qk_rope_dim"), int):
        data["head_dim"] = data["qk_nope_dim"] + data["qk_rope_dim"]
    return Fields({**defaults, **data}, c.where, c.prefix)
