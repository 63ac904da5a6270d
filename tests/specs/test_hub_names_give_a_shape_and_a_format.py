"""A checkpoint's hub name gives the shape of its base and the stored format that its suffix says; what it is not is refused."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.deployment.memory import loaded_weight_bytes
from sim.errors import UsageError
from sim.files import package_path
from sim.specs import checkpoint_names
from sim.specs.models import _index, get_model, list_shapes
from sim.specs.precision import Precision, checkpoint_notes

IDS = list(csv.DictReader((Path(__file__).parents[1] / "data" / "hub_ids.csv").read_text(encoding="utf-8").splitlines()))
# suffix -> (weights, KV cache) by the conventions of the owners, as their files say
SUFFIXES = {
    ("Qwen", "-FP8"): ("fp8", None),
    ("Qwen", "-AWQ"): ("int4", None),
    ("Qwen", "-GPTQ-Int4"): ("int4", None),
    ("Qwen", "-GPTQ-Int8"): ("w8a16", None),
    ("nvidia", "-FP8"): ("fp8", "fp8"),
    ("nvidia", "-NVFP4"): ("nvfp4", "fp8"),
    ("RedHatAI", "-FP8-dynamic"): ("fp8", None),
    ("RedHatAI", "-NVFP4"): ("nvfp4", None),
    ("RedHatAI", "-quantized.w4a16"): ("int4", None),
    ("RedHatAI", "-quantized.w8a8"): ("int8", None),
    ("amd", "-MXFP4"): ("mxfp4", None),
    ("unsloth", "-bnb-4bit"): ("int4", None),
    ("unsloth", "-GGUF:Q4_K_M"): ("q4_k_m", None),
    ("unsloth", "-GGUF"): ("q4_k_m", None),
    ("mlx-community", "-8bit"): ("w8a16", None),
    ("someone", "-Q8_0.gguf"): ("q8_0", None),
}
# Bits of a weight in most of the file, scales included
BITS = {"fp8": 8, "int4": 4.3, "w8a16": 8.2, "nvfp4": 4.5, "int8": 8, "mxfp4": 4.25, "q4_k_m": 4.9, "q8_0": 8.5}
# Names that the packaged table was not made from, by the base that they are
OTHERS = {
    "casperhansen/llama-3.3-70b-instruct-awq": "Llama-3.1-70B",
    "ibnzterrell/Meta-Llama-3.3-70B-Instruct-AWQ-INT4": "Llama-3.1-70B",
    "nvidia/Llama-3.3-70B-Instruct-FP4": "Llama-3.1-70B",
    "TheBloke/Mistral-7B-Instruct-v0.2-AWQ": "Mistral-7B-v0.3",
    "Intel/Qwen3-30B-A3B-Instruct-2507-int4-AutoRound": "Qwen3-30B-A3B-2507",
    "bartowski/Qwen2.5-Coder-32B-Instruct-GGUF:Q5_K_M": "Qwen2.5-32B",
    "lmstudio-community/gpt-oss-20b-MLX-8bit": "gpt-oss-20b",
    "cyankiwi/Qwen3-Coder-Next-AWQ-4bit": "Qwen3-Next-80B-A3B",
    "lukealonso/GLM-4.7-NVFP4": "GLM-4.6",
    "huihui-ai/Qwen3-8B-abliterated": "Qwen3-8B",
    "allenai/Llama-3.1-Tulu-3-8B": "Llama-3.1-8B",
    "Llama-3.3-70B": "Llama-3.1-70B",
    "https://huggingface.co/Qwen/Qwen3-32B-AWQ/tree/main": "Qwen3-32B",
    "ISTA-DASLab/gemma-3-27b-it-GPTQ-4b-128g": "Gemma-3-27B",
    "qwen3:32b": "Qwen3-32B",
    "qwen2.5-coder:32b-instruct-q4_K_M": "Qwen2.5-32B",
    "deepseek-r1:70b": "Llama-3.1-70B",
    "deepseek-r1:8b": "Qwen3-8B",
    "mistral-small3.2:24b": "Mistral-Small-3.1-24B",
    "qwen3-coder:30b": "Qwen3-Coder-30B-A3B",
    "NousResearch/Hermes-4-405B": "Llama-3.1-405B",
    "CohereLabs/c4ai-command-r-08-2024": "Command-R-35B",
}


def test_nineteen_of_twenty_published_names_answer_within_2_percent_of_their_shape():
    params = {base: get_model(base).params for base in list_shapes()}
    read = 0
    for row in IDS:
        try:
            found = checkpoint_names.find(row["hub_id"], _index())
        except UsageError:
            continue
        read += found is not None and abs(params[found.base] / float(row["params"]) - 1) < 0.02
    assert len(IDS) >= 1000
    assert read >= 0.95 * len(IDS)


@pytest.mark.parametrize("row", IDS[::97], ids=lambda row: row["hub_id"])
def test_a_published_name_answers_as_it_is_typed(row):
    assert get_model(row["hub_id"]).params == pytest.approx(float(row["params"]), rel=0.02)


def test_shapes_have_the_size_that_their_names_say():
    for base in {*checkpoint_names.bases()} - {"Gemma-7B", "OLMoE-1B-7B"}:  # of 8.5B, and 7B of which 1B are active
        if said := re.search(r"(?<![\w.])(\d+)B(?!\w)", base):
            assert get_model(base).params / 1e9 == pytest.approx(float(said[1]), rel=0.15 if float(said[1]) > 6 else 0.7), base


@pytest.mark.parametrize(("name", "base"), OTHERS.items())
def test_a_name_that_no_row_holds_is_read_by_the_rules(name, base):
    assert get_model(name).params == pytest.approx(get_model(base).params, rel=0.02)


@given(
    st.sampled_from(["Qwen3-32B", "Llama-3.1-70B", "Qwen3-4B", "GLM-4-32B-0414", "Seed-OSS-36B"]),
    st.sampled_from(list(SUFFIXES)),
    st.booleans(),
)
def test_a_suffix_says_how_the_weights_are_stored(base, owned, lower):
    owner, suffix = owned
    name = f"{owner}/{base.lower() if lower else base}{suffix}"
    plain, spec = get_model(base), get_model(name)
    dtype, kv = SUFFIXES[owned]
    assert (spec.params, spec.groups) == (plain.params, plain.groups)
    assert (spec.checkpoint.dtype, spec.checkpoint.kv_dtype) == (dtype, kv)
    tables = (1 if plain.tied_embeddings else 2) * plain.embedding_params
    narrow = (plain.params - tables) * BITS[dtype] / 8
    assert narrow * 0.97 < spec.checkpoint.total < (narrow + 2 * tables) * 1.06
    assert any(base in note and name in note and "by the rule of its name" in note for note in spec.notes)


def test_sixteen_bits_take_a_native_quantisation_off():
    assert get_model("deepseek-ai/DeepSeek-V3.1").checkpoint.dtype == "fp8"
    assert get_model("unsloth/DeepSeek-V3.1-BF16").checkpoint is None
    assert get_model("unsloth/gpt-oss-20b-BF16").expert_bits is None


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("llama3.1:8b", "q4_k_m"),
        ("qwen3:30b-a3b", "q4_k_m"),
        ("gpt-oss:20b", "mxfp4_moe"),
        ("gemma3:27b-it-qat", "q4_0"),
        ("llama3.3:70b-instruct-q8_0", "q8_0"),
        ("qwen3:32b-fp16", None),
    ],
)
def test_ollamas_names_have_its_usual_type_unless_they_say_another(name, dtype):
    checkpoint = get_model(name).checkpoint
    assert (checkpoint and checkpoint.dtype) == dtype


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("baidu/ERNIE-4.5-300B-A47B-PT", 300e9, 47e9),
        ("ibm-granite/granite-4.0-h-small", 32.2e9, 9e9),
        ("mistralai/Ministral-3-14B-Reasoning-2512", 13.5e9, 12.8e9),
        ("upstage/Solar-Open-100B", 102.6e9, 12e9 - 196608 * 4096),  # its card counts the input table
        ("stepfun-ai/Step-3.5-Flash-FP8", 196e9, 10.6e9),
        ("nvidia/Nemotron-H-8B-Base-8K", 8.1e9, 7.6e9),
        ("nvidia/Nemotron-H-47B-Reasoning-128K", 46.8e9, 45.7e9),
        ("swiss-ai/Apertus-70B-Instruct-2509", 70.6e9, 70.6e9 - 131072 * 8192),
        ("tiiuae/Falcon-H1-34B-Instruct", 33_642_516_224, 33.64e9 - 261120 * 5120),
        ("tencent/Hunyuan-A13B-Instruct-FP8", 80.4e9, 13e9),
        ("mistralai/Mistral-Large-3-675B-Instruct-2512-NVFP4", 673e9, 39e9),
        ("CohereLabs/c4ai-command-a-03-2025", 111e9, 111e9),
        ("Qwen/Qwen2-57B-A14B-Instruct", 57.4e9, 14.2e9 - 151936 * 3584),
    ],
)
def test_composed_shapes_have_the_published_parameters(name, total, active):
    spec = get_model(name)
    assert (spec.params, spec.active_params) == (pytest.approx(total, rel=0.01), pytest.approx(active, rel=0.03))


def test_the_context_is_that_of_the_name():
    assert get_model("ibm-granite/granite-3.3-8b-instruct").max_context == 131072
    assert get_model("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8").max_context == 262144
    assert get_model("Qwen/Qwen3-30B-A3B-FP8").max_context == 40960
    assert get_model("Qwen/Qwen2.5-7B-Instruct-AWQ").max_context == 32768
    assert get_model("Qwen/Qwen2.5-7B").max_context == 131072


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("moonshotai/Kimi-K2-Thinking", "int4"),
        ("amd/Kimi-K2.6-MXFP4", "mxfp4"),
        ("QuantTrio/DeepSeek-V3.2-Exp-AWQ-Lite", "int4"),
        ("RedHatAI/Qwen3-32B-NVFP4A16", "nvfp4"),
        ("mlx-community/gpt-oss-120b-MXFP4-Q8", "mxfp4"),
        ("someone/Qwen3-8B-FP8-abliterated", "fp8"),
        ("nex-agi/DeepSeek-V3.1-Nex-N1", "fp8"),
    ],
)
def test_a_format_is_read_wherever_it_stands(name, dtype):
    assert get_model(name).checkpoint.dtype == dtype


def test_sixteen_bits_of_a_gguf_file_leave_experts_that_are_published_in_four():
    assert get_model("unsloth/gpt-oss-120b-GGUF:F16").expert_bits == get_model("gpt-oss-120b").expert_bits
    assert get_model("huihui-ai/Huihui-gpt-oss-20b-BF16-abliterated").expert_bits is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Qwen3-33B", r"unknown model 'Qwen3-33B'; did you mean 'Qwen3-32B' or 'Qwen3-30B-A3B'\? .*config\.json"),
        ("inclusionAI/Ling-2.6-flash", "unknown model"),
        ("google/gemma-3n-E2B", "unknown model"),
        ("cogito:70b", "none of its family is here, of its size are 'Apertus-70B' and 'Llama-2-70B';"),
        ("RedHatAI/gpt-oss-20b-speculator.eagle3", "unknown model"),
        ("someone/Qwen3-8B-fp6-mine", "weights in fp6 are not known here"),
        ("databricks/dbrx-instruct", "unknown model 'databricks/dbrx-instruct'; none of its family is here;"),
        ("llama3.1:latest", "the tag latest says no size: name it, as in llama3.1:8b"),
        ("kimi-k2:1t-cloud", "runs in Ollama's cloud"),
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "unknown model"),
        ("zai-org/GLM-4.6-Air", "unknown model"),
        ("someone/merged-Qwen3-8B-and-Llama-3.1-8B", "is named after Llama-3.1-8B and Qwen3-8B"),
        ("turboderp/Llama-3.1-8B-exl2", "weights of exl2 are served by no engine here"),
        ("unsloth/GLM-5-GGUF:UD-TQ1_0", "GGUF type UD-TQ1_0 is not known"),
    ],
)
def test_what_is_no_known_checkpoint_is_one_line(name, says):
    with pytest.raises(UsageError, match=says):
        get_model(name)


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from(["Qwen3", "Llama", "-", "_", ".", ":", "/", "8B", "AWQ", "GGUF", "Q4_0", "3.1", "it"]), max_size=8).map(
        "".join
    )
)
def test_any_text_is_a_model_or_a_usage_error(text):
    try:
        spec = get_model(text)
    except UsageError:
        return
    assert spec.params > 0


def test_the_table_is_small_and_read_only_where_the_catalogue_lacks_the_name():
    file = package_path("sim.specs", "data", "checkpoints.json")
    assert file.stat().st_size <= 120_000
    assert set(json.loads(file.read_text(encoding="utf-8"))["shapes"]) <= set(list_shapes())
    code = (
        "from sim.specs.models import get_model; get_model('Llama-3.1-8B'); import sys; print('sim.specs.checkpoint_names' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("name", "wide"),
    [
        ("nvidia/DeepSeek-V3.1-NVFP4", "q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj"),
        ("nvidia/GLM-5-NVFP4", "self_attn"),
        ("nvidia/MiniMax-M2.5-NVFP4", "self_attn"),
        ("nvidia/Qwen3.5-122B-A10B-NVFP4", "self_attn linear_attn shared_experts"),
        ("nvidia/Qwen3-235B-A22B-NVFP4", ""),
    ],
)
def test_of_most_experts_nvfp4_files_leave_the_attention_in_16_bits(name, wide):
    spec = get_model(name)
    for group, stored in zip(spec.groups, spec.checkpoint.groups, strict=True):
        matrices = group.matrices(spec.hidden)
        narrow = [each for each in matrices if not each.kept and not set(each.name.split(".")) & set(wide.split())]
        sixteen = group.always_params(spec.hidden) - sum(each.elements for each in narrow)
        assert stored.layer == pytest.approx(2 * sixteen + sum(each.elements * 4.5 / 8 + 8 * each.copies for each in narrow))


def test_weights_of_an_nvfp4_file_are_those_that_an_engine_loaded():
    """vLLM's log of GLM-5.1 over eight GPUs: 55.67 GiB a GPU, latents' projections, selectors and routers whole on each."""
    assert loaded_weight_bytes(get_model("GLM-5.1-NVFP4"), Precision("nvfp4"), 8) / 2**30 == pytest.approx(55.67, rel=0.01)


@pytest.mark.parametrize(
    ("name", "dtype", "context"),
    [
        ("moonshotai/Kimi-K2-Thinking", "int4", 262144),
        ("nvidia/Kimi-K2-Thinking-NVFP4", "nvfp4", 262144),
        ("moonshotai/Kimi-K2-Instruct-0905", "fp8", 131072),
        ("amd/Kimi-K2.6-MXFP4", "mxfp4", 262144),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "int4", 32768),
        ("mlx-community/Qwen2.5-14B-Instruct-4bit", "int4", 32768),
    ],
)
def test_a_checkpoint_has_its_own_format_and_context_not_those_of_its_base(name, dtype, context):
    spec = get_model(name)
    assert (spec.checkpoint.dtype, spec.max_context) == (dtype, context)


def test_an_alias_of_the_catalogue_has_its_own_context():
    assert [get_model(name).max_context for name in ("Qwen2.5-7B", "Qwen2.5-7B-Instruct")] == [131072, 32768]


def test_nvfp4_asked_of_a_base_says_that_published_files_keep_more():
    notes = {base: checkpoint_notes(get_model(base), Precision("nvfp4", "bf16")) for base in ("Qwen3.6-27B", "Llama-3.1-8B")}
    assert any("Qwen3.6-27B-NVFP4" in note for note in notes["Qwen3.6-27B"])
    assert notes["Llama-3.1-8B"] == []
