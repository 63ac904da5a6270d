"""A checkpoint's bytes are the sum over its matrices of elements, scales and zero points, counted here one matrix at a time."""

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.deployment.memory import loaded_weight_bytes
from sim.errors import UsageError
from sim.specs.hf_config import spec_from_config
from sim.specs.precision import Precision
from tests.specs.configs import config

HEAD = "lm_head"
# method -> (fields, bytes of one quantised [rows, columns] matrix, dtype that it is priced as)
METHODS = {
    "fp8 tensor": ({"quant_method": "fp8"}, lambda r, c: r * c + 4, "fp8"),
    "fp8 static": ({"quant_method": "fp8", "activation_scheme": "static"}, lambda r, c: r * c + 8, "fp8"),
    "fp8 block": (
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        lambda r, c: r * c + 4 * ceil(r / 128) * ceil(c / 128),
        "fp8",
    ),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, lambda r, c: r * c / 2 + r * ceil(c / 32) * 2.5 + 4 * c, "int4"),
    "gptq 8": ({"quant_method": "gptq", "bits": 8, "group_size": 32}, lambda r, c: r * c + r * ceil(c / 32) * 3 + 4 * c, "w8a16"),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True},
        lambda r, c: r * c / 2 + r * ceil(c / 64) * 2.5,
        "int4",
    ),
    "awq symmetric": (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": False},
        lambda r, c: r * c / 2 + r * ceil(c / 64) * 2,
        "int4",
    ),
    "compressed int4": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}
            },
        },
        lambda r, c: r * c / 2 + r * ceil(c / 32) * 2,
        "int4",
    ),
    "compressed fp8": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "g": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                    "input_activations": {"num_bits": 8, "dynamic": True},
                }
            },
        },
        lambda r, c: r * c + 4 * r,
        "fp8",
    ),
    "modelopt fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, lambda r, c: r * c + 8, "fp8"),
    "modelopt nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, lambda r, c: r * c / 2 + r * ceil(c / 16) + 8, "nvfp4"),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        lambda r, c: r * c / 2 + r * ceil(c / 64) * 4,
        "int4",
    ),
    "torchao": (
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 32}}}},
        lambda r, c: r * c / 2 + r * ceil(c / 32) * 4,
        "int4",
    ),
    "quark": (
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}},
        lambda r, c: r * c / 2 + r * ceil(c / 32),
        "mxfp4",
    ),
}


def matrices(fields):
    """(name, rows, columns, copies) of a llama's or a Qwen3 mixture's projections, from the configuration fields alone."""
    hidden, layers, head = fields["hidden_size"], fields["num_hidden_layers"], fields["head_dim"]
    q, kv = fields["num_attention_heads"] * head, fields["num_key_value_heads"] * head
    inner = fields.get("moe_intermediate_size") or fields["intermediate_size"]
    copies, path = (fields["num_experts"], "mlp.experts.0") if "num_experts" in fields else (1, "mlp")
    for layer in range(layers):
        at = f"model.layers.{layer}"
        yield f"{at}.self_attn.q_proj", q, hidden, 1
        yield f"{at}.self_attn.k_proj", kv, hidden, 1
        yield f"{at}.self_attn.v_proj", kv, hidden, 1
        yield f"{at}.self_attn.o_proj", hidden, q, 1
        for leaf, rows, columns in (("gate_proj", inner, hidden), ("up_proj", inner, hidden), ("down_proj", hidden, inner)):
            yield f"{at}.{path}.{leaf}", rows, columns, copies


def quantised(kind, ignore, spelling, **shape):
    fields = config(kind, **shape)
    method, one, dtype = METHODS[spelling]
    key = {"compressed-tensors": "ignore", "modelopt": "ignore", "quark": "exclude"}.get(method["quant_method"], "modules_to_not_convert")
    if method["quant_method"] == "gptq":
        method = method | {"dynamic": {f"-:.*{name}.*": {} for name in ignore}}
    elif ignore:
        method = method | {key: ["lm_head", *ignore]}
    return fields | {"quantization_config": method}, one, dtype


@settings(max_examples=120)
@given(
    spelling=st.sampled_from(sorted(METHODS)),
    kind=st.sampled_from(["llama", "qwen3_moe"]),
    layers=st.integers(1, 4),
    hidden=st.sampled_from([64, 96, 160]),
    inner=st.sampled_from([96, 200]),
    tied=st.booleans(),
    ignore=st.sampled_from([[], ["self_attn"], ["model.layers.0"], ["self_attn", "model.layers.1.mlp"]]),
)
def test_every_method(spelling, kind, layers, hidden, inner, tied, ignore):
    shape = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": inner, "tie_word_embeddings": tied}
    if kind == "qwen3_moe":
        shape |= {"moe_intermediate_size": inner, "mlp_only_layers": None}
    fields, one, dtype = quantised(kind, ignore, spelling, **shape)
    spec = spec_from_config(fields, "made", "")
    expected, rest = 0.0, spec.params
    for name, rows, columns, copies in matrices(fields):
        kept = any(f".{part}." in f".{name}." for part in ignore)
        rest -= 0 if kept else rows * columns * copies
        expected += 0 if kept else copies * one(rows, columns)
    expected += 2 * rest
    if spec.checkpoint is None:  # everything ignored
        assert expected == 2 * spec.params
        return
    assert spec.checkpoint.dtype == dtype
    assert spec.checkpoint.total == pytest.approx(expected, rel=1e-12)
    assert loaded_weight_bytes(spec, Precision(dtype)) == spec.checkpoint.total
    groups = zip(spec.groups, spec.checkpoint.groups, strict=True)
    parts = sum(g.count * (b.layer + b.expert * getattr(g.mlp, "experts", 0)) for g, b in groups)
    assert parts + spec.checkpoint.embedding + spec.checkpoint.head + spec.checkpoint.other == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"quant_method": "magic"}, "quant_method"),
        ({"quant_method": "gptq", "bits": 5}, "bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": "x"}, "group_size"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "modelopt", "quant_algo": "INT1"}, "quant_algo"),
        ({"quant_method": "torchao", "quant_type": "int3"}, "quant_type"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups"),
        ({"bits": 4}, "quant_method"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_field(change, field):
    with pytest.raises(UsageError, match=field):
        spec_from_config(config("llama") | {"quantization_config": change}, "made", "")
