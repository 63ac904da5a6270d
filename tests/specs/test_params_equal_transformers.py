"""Our counts equal those of the reference implementation, built without memory, for every architecture and catalogue model."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.specs.hf_config import spec_from_config
from sim.specs.models import catalogue_config, get_model, list_models
from tests.specs.configs import SPECIAL, config

# The library's own imports and configuration classes warn; that is not what is tested here.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def reference_params(fields):
    """Parameters of the transformers model on torch's meta device, with DeepSeek's expert bias, which is a buffer there."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    fields = {name: value for name, value in fields.items() if name != "quantization_config"}
    kind = fields.pop("model_type")
    kind = "deepseek_v3" if kind == "kimi_k2" else kind  # the same architecture; transformers knows it by one name
    configured = transformers.AutoConfig.for_model(kind, **fields)
    auto = transformers.AutoModelForImageTextToText if "vision_config" in fields else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(configured)
    count = sum(parameter.numel() for parameter in model.parameters())
    return count + sum(buffer.numel() for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias"))


@pytest.mark.parametrize("name", list_models())
def test_catalogue(name):
    assert get_model(name).params == reference_params(catalogue_config(name))


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(sorted(SPECIAL)),
    layers=st.integers(1, 5),
    kv_heads=st.sampled_from([1, 2, 4]),
    head_dim=st.sampled_from([8, 16, 24]),
    vocab=st.integers(32, 512),
    inner=st.integers(8, 200),
    bias=st.booleans(),
    tied=st.booleans(),
)
def test_any_small_shape(kind, layers, kv_heads, head_dim, vocab, inner, bias, tied):
    changes = {
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "intermediate_size": inner,
    }
    if "kv_lora_rank" in SPECIAL[kind]:
        changes |= {"num_key_value_heads": 4, "head_dim": None}  # latent attention has neither
    elif kind not in {"mistral", "mixtral", "qwen2", "qwen2_moe", "gemma", "phi3"}:
        changes["attention_bias"] = bias
    fields = config(kind, **changes, tie_word_embeddings=tied)
    if kind == "phi3":
        fields["pad_token_id"] = None
    assert spec_from_config(fields, kind, "").params == reference_params(fields)
