"""Small configurations of every readable architecture, for tests: real fields, toy sizes."""

LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SHARED = {"shared_expert_intermediate_size": 40}
LATENT = {
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
}
# model_type -> the fields that only this architecture has or needs
SPECIAL = {
    "llama": {},
    "granite": {},
    "llama4_text": {
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 80,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 64,
    },
    "mistral": {"sliding_window": 64},
    "seed_oss": {"attention_bias": True},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"attention_bias": False},
    "qwen2_moe": MOE | SHARED,
    "qwen3_moe": MOE | {"mlp_only_layers": [0]},
    "gemma": {},
    "gemma2": {"sliding_window": 64},
    "gemma3_text": {"sliding_window": 64, "sliding_window_pattern": 2},
    "phi3": {"sliding_window": None},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32},
    "deepseek_v2": LATENT | {"q_lora_rank": None},
    "deepseek_v3": LATENT | {"q_lora_rank": 20},
    "kimi_k2": LATENT | {"q_lora_rank": 20},
    "glm4_moe": {k: v for k, v in LATENT.items() if not k.startswith(("kv_", "qk_", "v_"))} | {"attention_bias": True, "use_qk_norm": True},
    "qwen3_next": MOE | SHARED | LINEAR,
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": MOE | SHARED | LINEAR,
}


def config(model_type, **changes):
    """A toy configuration; a change to None drops the field."""
    fields = {
        "model_type": model_type,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 320,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }
    if model_type == "gemma3_text":
        fields["tie_word_embeddings"] = True
    merged = fields | SPECIAL[model_type] | changes
    return {name: value for name, value in merged.items() if changes.get(name, ...) is not None}
