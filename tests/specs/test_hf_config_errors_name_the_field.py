"""A configuration that cannot be read is one usage error that names the file and the field."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import UsageError
from sim.specs.architectures import DECODERS as READERS
from sim.specs.architectures import supported
from sim.specs.hf_config import spec_from_config
from sim.specs.models import catalogue_config, get_model
from tests.specs.configs import SPECIAL, config
from tests.specs.decoders import DECODERS

NEEDED = {
    "llama": [
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    ],
    "mixtral": ["num_local_experts", "num_experts_per_tok"],
    "gemma2": ["sliding_window"],
    "llama4_text": ["num_local_experts", "intermediate_size_mlp", "attention_chunk_size"],
    "qwen3_moe": ["num_experts", "moe_intermediate_size"],
    "qwen2_moe": ["shared_expert_intermediate_size"],
    "deepseek_v3": ["q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_routed_experts"],
    "qwen3_next": ["linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"],
}


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, fields in NEEDED.items() for field in fields])
def test_missing_field(kind, field):
    """By its commonest name, where architectures spell it in several ways."""
    commonest = "num_experts" if field in ("num_local_experts", "n_routed_experts") else field
    with pytest.raises(UsageError, match=rf"^toy: field '{commonest}' is missing$"):
        spec_from_config(config(kind, **{field: None}) if field != "model_type" else {}, "toy", "")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "rwkv"}, "field 'model_type' is unsupported: 'rwkv'"),
        ({"hidden_size": -1}, "field 'hidden_size' must be in 1"),
        ({"hidden_size": 0}, "field 'hidden_size' must be in 1"),
        ({"hidden_size": 10**15}, "field 'hidden_size' must be in 1"),
        ({"hidden_size": float("nan")}, "field 'hidden_size' must be a whole number"),
        ({"hidden_size": "4096"}, "field 'hidden_size' must be a whole number"),
        ({"hidden_size": True}, "field 'hidden_size' must be a whole number"),
        ({"num_hidden_layers": 10**6}, "field 'num_hidden_layers' must be at most"),
        ({"num_key_value_heads": 3}, "field 'num_key_value_heads' must divide"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7, "head_dim": None}, "field 'head_dim' is missing and hidden_size"),
        ({"tie_word_embeddings": "yes"}, "field 'tie_word_embeddings' must be true or false"),
        ({"model_type": 7}, "field 'model_type' must be text"),
        ({"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": ""}, "field 'sliding_window_pattern' is empty"),
    ],
)
def test_wrong_field(change, says):
    with pytest.raises(UsageError, match=f"^toy: {says}"):
        spec_from_config({k: v for k, v in (config("llama") | change).items() if v is not None}, "toy", "")


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("gemma2", {"layer_types": ["full_attention"]}, "field 'layer_types' has 1 entries for 4 layers"),
        ("gemma2", {"layer_types": ["chunked_attention"] * 4}, "field 'layer_types' has unsupported entry 'chunked_attention'"),
        ("llama4_text", {"layer_types": ["sliding_attention"] * 4}, "field 'layer_types' has unsupported entry 'sliding_attention'"),
        ("llama4_text", {"no_rope_layers": [1]}, "field 'no_rope_layers' has 1 entries for 4 layers"),
        ("llama4_text", {"moe_layers": 2}, "field 'moe_layers' must be a list"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}, "field 'sliding_window' is missing"),
        ("qwen3", {"layer_types": "full_attention"}, "field 'layer_types' must be a list"),
        ("qwen3_5_text", {"layer_types": ["sliding_attention"] * 4}, "field 'sliding_window' is missing"),
        ("mixtral", {"num_experts_per_tok": 9}, "field 'num_experts_per_tok' must be at most num_experts = 4"),
        ("qwen3_moe", {"mlp_only_layers": 3}, "field 'mlp_only_layers' must be a list"),
        ("gpt_oss", {"quantization_config": "mxfp4"}, "field 'quantization_config' must be a mapping"),
    ],
)
def test_wrong_field_of_one_architecture(kind, change, says):
    with pytest.raises(UsageError, match=f"^toy: {says}"):
        spec_from_config(config(kind) | change, "toy", "")


def test_nested_field_carries_its_path():
    broken = catalogue_config("Gemma-3-4B")
    broken["vision_config"] = {k: v for k, v in broken["vision_config"].items() if k != "patch_size"}
    with pytest.raises(UsageError, match=r"field 'vision_config\.patch_size' is missing"):
        spec_from_config(broken, "toy", "")
    with pytest.raises(UsageError, match=r"field 'text_config\.model_type' is unsupported: 'bert'"):
        spec_from_config(broken | {"text_config": {"model_type": "bert"}}, "toy", "")


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "not JSON"), ("{", "not JSON"), ("[1]", "top level must be a mapping"), ("[" * 100_000, "not JSON"), ("\ufeff{}", "not JSON")],
)
def test_not_a_configuration(text, says, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=says) as caught:
        get_model(str(file))
    assert str(file) in str(caught.value)


def test_bytes_that_are_not_text(tmp_path):
    file = tmp_path / "config.json"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8 text"):
        get_model(str(file))


def test_folder_without_a_configuration(tmp_path):
    with pytest.raises(UsageError, match=r"config\.json: No such file"):
        get_model(str(tmp_path))


def test_every_architecture_has_a_toy():
    """Those with a reader of their own; blocks and their traits have toys in `decoders`, and public figures elsewhere."""
    assert set(READERS) - set(SPECIAL) - set(DECODERS) == {
        "deepseek_v4",
        "deepseek_ref",
        "longcat_flash",
        "longcat_flash_ngram",
        "nemotron-nas",
        "dory",
        "gemma4_unified_text",
    }
    assert set(SPECIAL) | set(DECODERS) <= set(supported())
    for kind in SPECIAL:
        assert spec_from_config(config(kind), kind, "").params > 0


numbers = st.integers(-(2**70), 2**70) | st.floats()
anything = st.none() | st.booleans() | numbers | st.text() | st.lists(st.integers()) | st.dictionaries(st.text(), st.none())


@given(kind=st.sampled_from(sorted(SPECIAL)), data=st.data(), junk=anything)
def test_any_field_replaced_by_anything_is_read_or_refused(kind, data, junk):
    """Whatever one field holds, the answer is a ModelSpec with that many layers or a UsageError, never another exception."""
    fields = config(kind)
    name = data.draw(st.sampled_from(sorted(fields)))
    changed = json.loads(json.dumps(fields | {name: junk}))
    try:
        spec = spec_from_config(changed, "toy", "")
    except UsageError:
        return
    assert spec.params > 0
    assert spec.layers == changed["num_hidden_layers"]
