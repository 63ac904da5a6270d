"""Parameters, KV and state of published models, from the fields of their configuration files."""

import pytest

from sim import Deployment
from sim.cost.batch import decode_batch
from sim.deployment.memory import sequence_bytes
from sim.specs.hf_config import spec_from_config
from sim.specs.precision import Precision

GLM_5 = {
    "model_type": "glm_moe_dsa",
    "hidden_size": 6144,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2048,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "vocab_size": 154880,
    "max_position_embeddings": 202752,
}
NEMOTRON_NANO = {
    "model_type": "nemotron_h",
    "hidden_size": 2688,
    "num_hidden_layers": 52,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "vocab_size": 131072,
    "max_position_embeddings": 262144,
}
MIMO_V2 = {
    "model_type": "mimo_v2_flash",
    "hidden_size": 4096,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "hybrid_layer_pattern": [0, 1, 1, 1, 1] + [0, 1, 1, 1, 1, 1] * 7 + [0],
    "moe_layer_freq": [0] + [1] * 47,
    "sliding_window": 128,
    "intermediate_size": 16384,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "vocab_size": 152576,
    "max_position_embeddings": 262144,
}
DEEPSEEK_V4_FLASH = {
    "model_type": "deepseek_v4",
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "compress_ratios": [0, 0] + [4, 128] * 20 + [4, 0],
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_hash_layers": 3,
    "hc_mult": 4,
    "vocab_size": 129280,
    "max_position_embeddings": 1048576,
}
LONGCAT = {
    "model_type": "longcat_flash",
    "hidden_size": 6144,
    "num_layers": 28,
    "num_attention_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "ffn_hidden_size": 12288,
    "expert_ffn_hidden_size": 2048,
    "n_routed_experts": 512,
    "zero_expert_num": 256,
    "moe_topk": 12,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
}


@pytest.mark.parametrize(
    ("fields", "billions", "kv_bytes"),
    [
        (GLM_5, 743.911, 78 * 576 * 2),
        (NEMOTRON_NANO, 31.578, 6 * 2 * 128 * 2 * 2),
        (MIMO_V2, 308.779, 9 * 4 * (192 + 128) * 2),
        (DEEPSEEK_V4_FLASH, 284.326, (21 / 4 + 20 / 128) * 512 * 2),
        (LONGCAT, 560.66, 56 * 576 * 2),
    ],
)
def test_parameters_and_kv(fields, billions, kv_bytes):
    spec = spec_from_config(fields, "made", "")
    assert spec.params / 1e9 == pytest.approx(billions, rel=1e-3)
    assert 2 * spec.kv_elements_per_token == pytest.approx(kv_bytes, abs=1)


@pytest.mark.parametrize(("said", "gigabytes"), [({}, 160), ({"expert_dtype": "fp4"}, 160), ({"expert_dtype": "fp8"}, 286)])
def test_an_fp8_file_of_deepseek_v4_holds_4_bit_experts_unless_it_says_otherwise(said, gigabytes):
    """277 billion of the 284 are experts': 4.25 bits or 8 each."""
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}
    spec = spec_from_config(DEEPSEEK_V4_FLASH | said | {"quantization_config": quantised}, "made", "")
    experts = spec.expert_params * (1 if said.get("expert_dtype") == "fp8" else 4.25 / 8)
    assert experts < spec.checkpoint.total < experts + 2 * (spec.params - spec.expert_params)
    assert spec.checkpoint.total / 1e9 == pytest.approx(gigabytes, rel=0.03)
    assert ("mxfp4" in spec.checkpoint.said) == (said.get("expert_dtype") != "fp8")


DORY = {
    "model_type": "dory",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "n_input_layers": 2,
    "n_output_layers": 2,
    "sliding_window": 32,
    "vocab_size": 320,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize("loops", [1, 3])
def test_layers_that_run_again_are_stored_once_and_cached_each_time(loops):
    """Four attention layers, the seventh over the whole context; the middle two of them loop."""
    spec = spec_from_config(DORY | {"n_recurrent_loops": loops}, "made", "")
    attention, mlp = 64 * 64 * 3 + 2 * 64 * 32 + 2 * 64, 3 * 64 * 96 + 2 * 96
    assert spec.params == 2 * 320 * 64 + 320 + 4 * (attention + mlp + 2 * 64)
    assert spec.layers == 4 + 4 * loops
    assert spec.kv_elements_per_token == 2 * 2 * 16
    assert spec.window_kv_elements_per_token == (1 + 2 * loops) * 2 * 2 * 16
    one, more = (Deployment.of(spec_from_config(DORY | {"n_recurrent_loops": n}, "made", ""), "H100") for n in (1, loops))
    weights = [d.work(decode_batch(d.model, 1.0, 8.0)).linear_bytes for d in (one, more)]
    assert weights[1] - weights[0] == pytest.approx(2 * (loops - 1) * 2 * (attention + mlp + 2 * 64))


def test_an_indexer_reads_what_it_selects_and_keeps_everything():
    """A decode at 64K tokens reads 2,048 entries of each latent cache and every 8-bit key; the whole cache stays resident."""
    spec, bf16 = spec_from_config(GLM_5, "GLM-5", ""), Precision()
    latent, keys = 78 * 576 * 2, 78 * (128 + 4)
    assert sequence_bytes(spec, 65536, bf16, Deployment.of(spec, "H200", dtype="bf16").limits.attention, 1)[0] == 65536 * (latent + keys)
    work = Deployment.of(spec, "H200", dtype="bf16").work(decode_batch(spec, 1.0, 65536.0))
    assert work.kv_bytes == pytest.approx(2048 * latent + 65536 * keys + latent + keys)


def test_layers_that_read_an_earlier_cache_keep_none():
    fields = {
        "model_type": "gemma3n_text",
        "hidden_size": 2048,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "intermediate_size": [16384] * 35,
        "num_kv_shared_layers": 15,
        "sliding_window": 512,
        "vocab_size": 262400,
        "vocab_size_per_layer_input": 262144,
        "max_position_embeddings": 32768,
    }
    spec = spec_from_config(fields, "made", "")
    assert spec.params == 6_835_235_568
    assert spec.kv_elements_per_token == 4 * 2 * 2 * 256
    assert spec.window_kv_elements_per_token == 16 * 2 * 2 * 256
    work = Deployment.of(spec, "H100").work(decode_batch(spec, 1.0, 4096.0))
    token = 2 * 2 * 256 * 2
    assert work.kv_bytes == (7 * 4096 + 28 * 512 + 20) * token


def test_blocks_that_mix_or_compute_alone_are_summed_once_each():
    """Tensor parallelism sums after every block: 52 of Nemotron 3 Nano's single blocks, not twice as many."""
    spec = spec_from_config(NEMOTRON_NANO, "nano", "")
    assert Deployment.of(spec, "H100", tp=2).work(decode_batch(spec, 1.0, 100.0)).comm_ops == 52


def test_a_wrapper_is_read_by_its_text_part():
    text = {"model_type": "qwen3_vl_text", "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64}
    text |= {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 25600, "vocab_size": 151936, "max_position_embeddings": 262144}
    fields = {"model_type": "qwen3_vl", "tie_word_embeddings": False, "text_config": text, "vision_config": {"depth": 27}}
    spec = spec_from_config(fields, "VL", "")
    assert spec.params == 32_762_123_264
    assert 2 * spec.kv_elements_per_token == 262_144
    assert "vision_config" in " ".join(spec.notes)


@pytest.mark.parametrize(
    ("fields", "params", "context"),
    [
        (
            {"model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696, "num_layers": 40, "num_attention_heads": 32}
            | {"multi_query_group_num": 2, "kv_channels": 128, "padded_vocab_size": 151552, "seq_length": 131072}
            | {"add_qkv_bias": True, "add_bias_linear": False},
            9_399_951_360,
            131072,
        ),
        (
            {"model_type": "deepseek", "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16, "vocab_size": 102400}
            | {"intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2}
            | {"num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1, "max_position_embeddings": 4096},
            16_375_728_128,
            4096,
        ),
        (
            {"model_type": "dbrx", "d_model": 6144, "n_layers": 40, "n_heads": 48, "max_seq_len": 32768, "vocab_size": 100352}
            | {"attn_config": {"kv_n_heads": 8}, "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
            131_596_523_520,
            32768,
        ),
    ],
)
def test_older_spellings_of_fields(fields, params, context):
    spec = spec_from_config(fields, "made", "")
    assert (spec.params, spec.max_context) == (params, context)
