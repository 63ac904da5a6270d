"""Without --dtype a checkpoint is served in the precision that it is stored in; sizes are those of published checkpoints."""

import json

import pytest

from sim import Deployment
from sim.deployment.memory import loaded_weight_bytes
from sim.errors import UsageError
from sim.specs.hf_config import load_spec, spec_from_config
from sim.specs.models import catalogue_config, get_model
from sim.specs.stored import stored
from tests.cli import run
from tests.specs.configs import config

FP8_BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def published(name, quantization):
    return spec_from_config(catalogue_config(name) | {"quantization_config": quantization}, name, "")


@pytest.mark.parametrize(
    ("name", "quantization", "dtype", "gigabytes"),
    [("Qwen2.5-72B", AWQ, "int4", 41.6), ("Qwen2.5-7B", AWQ, "int4", 5.57), ("Qwen3-32B", FP8_BLOCKS, "fp8", 34.3)],
)
def test_sizes_of_published_files(name, quantization, dtype, gigabytes):
    """Weight files of Qwen/Qwen2.5-72B-Instruct-AWQ, Qwen/Qwen2.5-7B-Instruct-AWQ and Qwen/Qwen3-32B-FP8, in GB, to half a percent."""
    spec = published(name, quantization)
    assert spec.checkpoint.dtype == dtype
    assert spec.checkpoint.total / 1e9 == pytest.approx(gigabytes, rel=5e-3)
    d = Deployment.of(spec, "H100", tp=1)
    assert (d.precision.weights, d.precision.kv) == (dtype, "bf16")


@pytest.mark.parametrize(("name", "gigabytes"), [("DeepSeek-R1", 673), ("Kimi-K2", 1029)])
def test_catalogue_models_published_in_eight_bits(name, gigabytes):
    d = Deployment.of(name, "H200", tp=8)
    assert d.precision.weights == "fp8"
    assert loaded_weight_bytes(d.model, d.precision) / 1e9 == pytest.approx(gigabytes, rel=2e-3)


def test_a_dtype_overrides_and_is_said():
    from sim.specs.precision import checkpoint_notes

    spec = published("Qwen3-32B", FP8_BLOCKS)
    d = Deployment.of(spec, "H200", dtype="bf16")
    assert loaded_weight_bytes(spec, d.precision) == 2 * spec.params
    assert "sets aside" in " ".join(checkpoint_notes(spec, d.precision))


@pytest.mark.parametrize(
    ("scheme", "kv"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_scheme": None}, "bf16"),
    ],
)
def test_kv_cache_of_the_checkpoint(scheme, kv):
    spec = published("Llama-3.1-8B", {"quant_method": "modelopt", "quant_algo": "FP8", **scheme})
    assert Deployment.of(spec, "H100").precision.kv == kv
    assert Deployment.of(spec, "H100", kv_dtype="bf16").precision.kv == "bf16"
    assert Deployment.of(spec, "H100", dtype="bf16").precision.kv == "bf16"


def test_a_quantisation_beside_the_config(tmp_path):
    """modelopt's exports state it in hf_quant_config.json."""
    (tmp_path / "config.json").write_text(json.dumps(config("llama")), encoding="utf-8")
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside), encoding="utf-8")
    assert load_spec(tmp_path).checkpoint.dtype == "nvfp4"


def test_mixed_precisions_by_module():
    layers = {f"model.layers.{i}.self_attn.{p}_proj": {"quant_algo": "FP8"} for i in range(4) for p in "qkvo"}
    layers |= {f"model.layers.{i}.mlp": {"quant_algo": "NVFP4", "group_size": 16} for i in range(4)}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    spec = spec_from_config(config("llama", hidden_size=256, head_dim=64, intermediate_size=512) | {"quantization_config": mixed}, "m", "")
    attention, mlp = 4 * (2 * 256 * 256 + 2 * 256 * 128 + 4 * 8), 4 * (3 * 256 * 512 * (4.5 / 8) + 3 * 8)
    others = 2 * (2 * 320 * 256 + 9 * 256)
    assert spec.checkpoint.dtype == "nvfp4"
    assert spec.checkpoint.total == attention + mlp + others


GPTQ = {"bits": 4, "group_size": 32, "sym": True, "desc_act": False}
ROUND = {"quant_method": "intel/auto-round", "bits": 4, "group_size": 32, "sym": True}
INT4, INT8 = ({"_type": f"Int{bits}WeightOnlyConfig", "_data": {"group_size": 32}} for bits in (4, 8))


def test_autogptq_states_it_beside_the_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config("llama")), encoding="utf-8")
    (tmp_path / "quantize_config.json").write_text(json.dumps(GPTQ), encoding="utf-8")
    assert load_spec(tmp_path).checkpoint.said.startswith("gptq")


@pytest.mark.parametrize(
    ("quantization", "share"),
    [
        ({"quant_method": "gptq", **GPTQ, "dynamic": {"+:.*down_proj": {"bits": 8}}}, "w8a16"),
        (ROUND | {"extra_config": {r".*mlp\.down_proj": {"bits": 8}}}, "w8a16"),
        (ROUND | {"extra_config": {f"model.layers.{i}.mlp.down_proj": {"bits": 16} for i in range(4)}}, ""),
        (
            {
                "quant_method": "torchao",
                "quant_type": {
                    "default": {
                        "_type": "ModuleFqnToConfig",
                        "_data": {"module_fqn_to_config": {"_default": INT4, "re:.*down_proj": INT8}},
                    }
                },
            },
            "w8a16",
        ),
    ],
)
def test_modules_with_bits_of_their_own(quantization, share):
    """All down projections, of 4 bits but for these: beside them, the file is as without."""
    shape = config("llama", hidden_size=256, head_dim=64, intermediate_size=512)
    spec = spec_from_config(shape | {"quantization_config": quantization}, "m", "")
    down = spec.layers * 256 * 512 / spec.params
    assert share in spec.checkpoint.said
    assert f"{down:.0%} w8a16" in spec.checkpoint.said or not share
    four = float(spec.checkpoint.said.split(": ")[1].split("%")[0])
    assert four == pytest.approx(100 * (spec.layers * (2 * 256 * 256 + 2 * 256 * 128 + 2 * 256 * 512) / spec.params), abs=0.5)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"surprising": 3, "fmt": "e4m3"}, "not read: surprising"),
        ({"bits": 8, "dynamic": {"+:x": {}}}, "not read: dynamic"),
        ({"kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "a KV cache of 4 bits is taken for one of fp8"),
    ],
)
def test_what_is_not_read_is_named(more, said):
    assert published("Llama-3.1-8B", FP8_BLOCKS | more).notes == (f"quantization_config: {said}.",)


def test_simulate_and_plan_name_it(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(catalogue_config("Qwen3-8B") | {"quantization_config": FP8_BLOCKS | {"surprising": 1}}))
    asked = ("--gpu", "H100", "--model", str(path), "--num-prompts", "4", "--request-rate", "2")
    assert "quantization_config: not read: surprising." in run("simulate", *asked, "--draws", "0").stdout
    assert "not read: surprising." in run("plan", *asked, "--slo", "ttft:p90<9s", "--quick", "--within", "5s").stderr


@pytest.mark.parametrize("both", [True, False])
def test_contradictions_name_the_field(both):
    with pytest.raises(UsageError, match=r"load_in_4bit.*contradict"):
        published("Llama-3.1-8B", {"quant_method": "bitsandbytes", "load_in_4bit": both, "load_in_8bit": both})


def test_a_wrapper_of_a_decoder_read_by_blocks():
    """Ministral 3: 8.5e9 parameters of text in Mistral 3's wrapper, and a Pixtral tower of 0.4e9."""
    text = {"model_type": "ministral3", "hidden_size": 4096, "num_hidden_layers": 34, "num_attention_heads": 32, "num_key_value_heads": 8}
    text |= {"head_dim": 128, "intermediate_size": 14336, "vocab_size": 131072, "max_position_embeddings": 262144}
    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 14}
    spec = spec_from_config({"model_type": "mistral3", "text_config": text, "vision_config": vision}, "m", "")
    assert spec.params / 1e9 == pytest.approx(8.9, abs=0.05)


@pytest.mark.parametrize(
    ("kind", "gigabytes"),
    [
        ("q8_0", 8.54),
        ("q6_k", 6.60),
        ("q5_k_m", 5.73),
        ("q4_k_m", 4.92),
        ("q4_k_s", 4.69),
        ("iq4_xs", 4.45),
        ("q3_k_m", 4.02),
        ("q2_k", 3.18),
    ],
)
def test_gguf_files_of_llama_8b(kind, gigabytes):
    """Sizes of the published GGUF files of Llama 3.1 8B Instruct; the vocabulary adds 8 MB to the weights."""
    assert stored(get_model("Llama-3.1-8B"), kind).total / 1e9 == pytest.approx(gigabytes - 0.008, abs=0.008)


def test_gguf_types_are_llama_cpps():
    assert Deployment.of("Llama-3.1-8B", "RTX-4090", dtype="q4_k_m", engine="llamacpp").precision.weights == "q4_k_m"
    with pytest.raises(UsageError, match="llamacpp"):
        Deployment.of("Llama-3.1-8B", "RTX-4090", dtype="q4_k_m")
