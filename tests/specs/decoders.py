"""Small configurations of decoders that are read by their building blocks, and the parameters that transformers 5.24 counts for them.

Counted on the meta device, with experts' correction biases, which are buffers there.
"""

from tests.specs.configs import LATENT, LINEAR, config

BASE = {"head_dim": None, "num_attention_heads": 4, "num_key_value_heads": 2}
MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1}
DENSE_FIRST = {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}
SLIDING = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"] * 2}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_conv": 4, "mamba_expand": 2}
MLA = {name: value for name, value in LATENT.items() if name != "first_k_dense_replace"} | {"q_lora_rank": 20, "num_key_value_heads": 4}
INDEX = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 32}
GPT = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 128, "hidden_size": None, "num_hidden_layers": None}
GPT |= {"num_attention_heads": None, "num_key_value_heads": None, "intermediate_size": None, "max_position_embeddings": None}
KDA = {"linear_head_dim": 16, "linear_num_heads": 4, "linear_conv_kernel_dim": 4}
HYBRID = {"layer_types": ["linear_attention", "full_attention"] * 2}
# model_type -> (fields beside the common ones, parameters)
DECODERS = {
    "apertus": ({}, 139976),
    "arcee": ({}, 139840),
    "exaone": ({}, 164416),
    "exaone4": ({"sliding_window": 64, "sliding_window_pattern": 4}, 164544),
    "ernie4_5": ({"head_dim": 16, "tie_word_embeddings": True}, 143936),
    "smollm3": ({"pad_token_id": 0, "tie_word_embeddings": True}, 143936),
    "hyperclovax": ({"use_post_norm": True}, 164928),
    "internlm3": ({"head_dim": 16}, 164416),
    "jais2": ({"attention_bias": True, "mlp_bias": True, "head_dim": 16}, 141824),
    "nemotron": ({"head_dim": 16}, 140416),
    "stablelm": ({"use_qkv_bias": True}, 165504),
    "starcoder2": ({"use_bias": True}, 141824),
    "phi": ({"num_key_value_heads": 4}, 158272),
    "persimmon": ({"num_key_value_heads": None}, 158720),
    "olmo": ({}, 163840),
    "olmo2": ({}, 164800),
    "olmo3": (SLIDING, 164800),
    "cohere": ({"tie_word_embeddings": True}, 143680),
    "cohere2": (SLIDING | {"tie_word_embeddings": True, "head_dim": 16}, 143680),
    "glm": ({"attention_bias": True, "head_dim": 16, "pad_token_id": 0}, 164928),
    "glm4": ({"attention_bias": True, "head_dim": 16, "pad_token_id": 0}, 165440),
    "hunyuan_v1_dense": ({"head_dim": 16}, 164544),
    "vaultgemma": ({"head_dim": 16, "sliding_window": 64, "tie_word_embeddings": True}, 143936),
    "granite_swa": (SLIDING | {"tie_word_embeddings": True}, 143952),
    "gpt2": (GPT | {"tie_word_embeddings": True}, 228736),
    "gpt_bigcode": (GPT | {"tie_word_embeddings": True}, 203776),
    "gptj": (GPT | {"rotary_dim": 8}, 239808),
    "gpt_neox": ({"num_key_value_heads": None}, 158464),
    "opt": ({"ffn_dim": 96, "word_embed_proj_dim": 64, "num_key_value_heads": None, "tie_word_embeddings": True}, 170880),
    "falcon": ({"ffn_hidden_size": 256, "intermediate_size": None, "num_key_value_heads": None, "tie_word_embeddings": True}, 193152),
    "olmoe": (MOE | {"moe_intermediate_size": None}, 682944),
    "flex_olmo": (MOE | {"moe_intermediate_size": None, "pad_token_id": 0}, 682944),
    "phimoe": ({"num_local_experts": 8, "num_experts_per_tok": 2}, 683136),
    "granitemoe": ({"num_local_experts": 8, "num_experts_per_tok": 2}, 682560),
    "granitemoeshared": ({"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 40}, 713280),
    "ernie4_5_moe": (
        {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 24, "moe_num_shared_experts": 2, "moe_layer_start_index": 1}
        | {"moe_layer_end_index": 3, "moe_layer_interval": 1, "tie_word_embeddings": True},
        228440,
    ),
    "dots1": (ROUTED | {"first_k_dense_replace": 1, "head_dim": 16}, 235224),
    "exaone_moe": (MOE | DENSE_FIRST | {"num_shared_experts": 1, "sliding_window": 64, "sliding_window_pattern": 4}, 235224),
    "hy_v3": (MOE | DENSE_FIRST | {"num_shared_experts": 1, "head_dim": 16}, 235224),
    "minimax_m2": ({"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16}, 682976),
    "afmoe": (
        MOE | {"num_dense_layers": 1, "num_shared_experts": 1, "head_dim": 16, "sliding_window": 64},
        252120,
    ),
    "laguna": (MOE | DENSE_FIRST | {"shared_expert_intermediate_size": 40, "head_dim": 16, "sliding_window": 64}, 245464),
    "sarvam_moe": (ROUTED | {"first_k_dense_replace": 1, "head_dim": 16, "use_qk_norm": True}, 235224),
    "deepseek_v32": (MLA | INDEX | DENSE_FIRST | {"first_k_dense_replace": 1}, 233944),
    "glm_moe_dsa": (MLA | INDEX | DENSE_FIRST | {"first_k_dense_replace": 1}, 233944),
    "glm4_moe_lite": (MLA | DENSE_FIRST, 226648),
    "minicpm3": (
        {"kv_lora_rank": 12, "q_lora_rank": 20, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 10, "num_key_value_heads": 4},
        142144,
    ),
    "kimi_linear": (MLA | KDA | HYBRID | DENSE_FIRST | {"num_shared_experts": 2} | MOE | {"q_lora_rank": None, "pad_token_id": 0}, 258008),
    "olmo_hybrid": (LINEAR | HYBRID | {"full_attention_interval": None, "pad_token_id": 0}, 170544),
    "minimax": (HYBRID | {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16}, 699072),
    "bamba": (MAMBA2 | {"attn_layer_indices": [1, 3]}, 198224),
    "falcon_h1": (MAMBA2 | {"mamba_d_ssm": 128, "mamba_rms_norm": True}, 281184),
    "granitemoehybrid": (
        MAMBA2 | HYBRID | {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 40},
        747088,
    ),
    "nemotron_h": (
        {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "mamba_num_heads": 8, "mamba_head_dim": 16}
        | {"ssm_state_size": 12, "n_groups": 2, "conv_kernel": 4, "num_hidden_layers": None, "head_dim": 16}
        | ROUTED
        | {"moe_shared_expert_intermediate_size": 40},
        125264,
    ),
    "jamba": (
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "mamba_dt_rank": 4,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
        }
        | {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "pad_token_id": 0},
        310120,
    ),
    "mamba": ({"state_size": 8, "intermediate_size": None, "tie_word_embeddings": True}, 139072),
    "mamba2": ({"num_heads": 8, "head_dim": 16, "state_size": 12, "n_groups": 2}, 158048),
    "lfm2": ({"layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3, "tie_word_embeddings": True}, 275456),
    "lfm2_moe": (
        MOE | {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1, "tie_word_embeddings": True, "use_expert_bias": True},
        209432,
    ),
    "recurrent_gemma": (
        {
            "lru_width": 64,
            "block_types": ["recurrent", "recurrent", "attention"],
            "head_dim": 16,
            "tie_word_embeddings": True,
            "intermediate_size": 192,
        },
        153280,
    ),
    "gemma3n_text": (
        {"intermediate_size": [96] * 4, "head_dim": 16, "num_kv_shared_layers": 1, "hidden_size_per_layer_input": 8, "laurel_rank": 8}
        | SLIDING
        | {"vocab_size_per_layer_input": 256, "activation_sparsity_pattern": [0.0] * 4, "tie_word_embeddings": True},
        185848,
    ),
    "gemma4_text": (
        SLIDING
        | {"head_dim": 16, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 256, "global_head_dim": 32}
        | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 24, "attention_k_eq_v": True}
        | {"num_global_key_value_heads": 1, "tie_word_embeddings": True},
        322088,
    ),
    "zamba2": (
        {"mamba_d_state": 12, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_ngroups": 1, "n_mamba_heads": 4, "hybrid_layer_ids": [1, 3]}
        | {"num_mem_blocks": 1, "adapter_rank": 8, "num_key_value_heads": 4, "tie_word_embeddings": True, "pad_token_id": 0}
        | {"layers_block_type": ["linear_attention", "hybrid"] * 2, "attention_head_dim": 32},
        218128,
    ),
    "hrm_text": ({"num_hidden_layers": 2, "num_key_value_heads": 4, "head_dim": 16, "H_cycles": 2, "L_cycles": 3}, 196672),
    "beam": (MOE | DENSE_FIRST | SLIDING | {"head_dim": 16, "n_group": 1, "topk_group": 1}, 238312),
    "flint": (MOE | {"mlp_only_layers": [0], "shared_expert_intermediate_size": 40, "head_dim": 16, "pad_token_id": 0} | SLIDING, 244432),
    "mellum": (
        {"num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16} | SLIDING,
        240320,
    ),
    "hy_v4": (MLA | INDEX | DENSE_FIRST | {"hc_mult": 4, "indexer_types": ["full", "shared"] * 2, "pad_token_id": 0}, 258045),
    "axk1": (MLA | DENSE_FIRST | {"pad_token_id": 0}, 226840),
}


def toy(kind):
    """The configuration of a decoder in the table."""
    fields = config("llama", **BASE) | {"model_type": kind} | DECODERS[kind][0]
    return {name: value for name, value in fields.items() if value is not None or name == "q_lora_rank"}
