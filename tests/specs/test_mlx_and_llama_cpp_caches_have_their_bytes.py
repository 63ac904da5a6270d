"""MLX's groups and llama.cpp's quantised caches: bytes by hand, from the formats' own layouts."""

import pytest

from sim.errors import UsageError
from sim.specs.gpus import get_gpu
from sim.specs.hf_config import spec_from_config
from sim.specs.models import catalogue_config, get_model
from sim.specs.precision import Precision, check_engine
from sim.study.deployment import Deployment

PLAIN = get_model("Qwen3-8B")


def of(quantization, **more):
    return spec_from_config(catalogue_config("Qwen3-8B") | {"quantization": quantization} | more, "x", "")


@pytest.mark.parametrize(("bits", "group"), [(4, 64), (8, 64), (4, 32), (6, 64)])
def test_a_group_has_a_scale_and_a_bias_of_16_bits(bits, group):
    """Tables are quantised, too; norms keep 16 bits."""
    spec = of({"group_size": group, "bits": bits})
    norms = (
        PLAIN.params - sum(g.count * sum(m.elements for m in g.matrices(PLAIN.hidden)) for g in PLAIN.groups) - 2 * PLAIN.embedding_params
    )
    by_hand = (PLAIN.params - norms) * (bits + 32 / group) / 8 + 2 * norms
    assert spec.checkpoint.total == pytest.approx(by_hand, rel=1e-9)
    assert spec.checkpoint.dtype == ("int4" if bits == 4 else "w8a16")


def test_modules_have_fields_of_their_own_or_stay_as_they_are():
    base = of({"group_size": 64, "bits": 4})
    mixed = of({"group_size": 64, "bits": 4, "lm_head": {"group_size": 64, "bits": 8}, "model.embed_tokens": False})
    assert mixed.checkpoint.embedding == 2 * PLAIN.embedding_params
    assert mixed.checkpoint.head == pytest.approx(base.checkpoint.head * 8.5 / 4.5)


def test_both_of_mlx_lms_keys_are_read_alike_and_other_modes_are_its_formats():
    said = {"group_size": 64, "bits": 4}
    assert of(said, quantization_config=said).checkpoint == of(said).checkpoint
    assert of({"group_size": 32, "bits": 4, "mode": "mxfp4"}).checkpoint.dtype == "mxfp4"
    with pytest.raises(UsageError, match=r"quantization\.mode' is unsupported: 'ternary'"):
        of({"group_size": 32, "bits": 4, "mode": "ternary"})


@pytest.mark.parametrize(("dtype", "bytes_of_32"), [("q8_0", 34), ("q4_0", 18), ("q5_1", 24), ("iq4_nl", 18)])
def test_a_cache_of_blocks_has_their_scales(dtype, bytes_of_32):
    """A block of 32 elements: its bits, and a scale (and a minimum) of 16 bits each."""
    assert Precision("q4_k_m", dtype).kv_bytes == bytes_of_32 / 32
    d = Deployment.of("Qwen3-8B", "RTX-4090", dtype="q4_k_m", kv_dtype=dtype, engine="llamacpp")
    assert d.precision.kv == dtype
    with pytest.raises(UsageError, match=f"a KV cache of {dtype} is llama.cpp's"):
        check_engine(Precision("bf16", dtype), "vllm", get_gpu("H100"))
