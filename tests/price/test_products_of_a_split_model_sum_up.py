"""Every catalogue model's matrix products hold its weights; over several GPUs each holds its part, and KV heads are held twice if few."""

import pytest

from sim.cost.gemm import gemms_of, layers_of
from sim.specs.model import Attention, DenseMlp, LayerGroup, ModelSpec
from sim.specs.models import get_model, list_models

UNLIKE = {
    "Qwen3-Next-80B-A3B",
    "Qwen3.6-35B-A3B",
    "Qwen3.6-27B",
    "DeepSeek-V3",
    "DeepSeek-V2-Lite",
    "Kimi-K2",
    "Llama-4-Scout",
    "Llama-4-Maverick",
}


def dense_params(group: LayerGroup, hidden: int) -> int:
    """Of one layer: what is multiplied by all its rows, with biases; no norms, sinks or experts."""
    mixer = group.mixer
    assert isinstance(mixer, Attention)
    beside = 2 * mixer.head_dim * mixer.qk_norm + mixer.heads * mixer.sinks
    return mixer.params(hidden) - beside + (group.mlp.params(hidden) if group.mlp.kind == "dense" else 0)


@pytest.mark.parametrize("name", list_models())
def test_the_products_of_one_gpu_hold_every_dense_weight(name: str) -> None:
    model = get_model(name)
    found = gemms_of(model)
    assert (not found) == (name in UNLIKE)
    if found:
        held = sum(layers * (product.k * product.n + product.bias * product.n) for product, layers in found)
        assert held == sum(group.count * dense_params(group, model.hidden) for group in model.groups)


@pytest.mark.parametrize("tp", [2, 4, 8, 16])
@pytest.mark.parametrize("name", sorted(set(list_models()) - UNLIKE))
def test_the_parts_of_several_gpus_are_the_whole(name: str, tp: int) -> None:
    model = get_model(name)
    found = layers_of(model, tp)
    if not found:
        sizes = {size for g in model.groups for size in (g.mixer.heads, g.mlp.intermediate if g.mlp.kind == "dense" else tp)}
        kv = {g.mixer.kv_heads for g in model.groups}
        assert any(size % tp for size in sizes) or any(heads % tp and tp % heads for heads in kv)
        return
    assert all(min(layer.gemm.k, layer.gemm.n, layer.layers) > 0 for layer in found)
    for part, whole in zip(found, layers_of(model), strict=True):
        assert (part.name, part.layers, part.gemm.bias) == (whole.name, whole.layers, whole.gemm.bias)
        k, n = whole.gemm.k, whole.gemm.n
        if part.name in ("o", "down"):
            assert (part.gemm.k * tp, part.gemm.n) == (k, n)
        elif part.name == "gate_up":
            assert (part.gemm.k, part.gemm.n * tp) == (k, n)
        else:  # a KV head is held by several GPUs where there are fewer
            (mixer,) = {(g.mixer.kv_heads, g.mixer.head_dim) for g in model.groups}
            assert (part.gemm.k, part.gemm.n * tp) == (k, n + 2 * max(tp - mixer[0], 0) * mixer[1])


def stack(mixer: Attention, mlp: DenseMlp) -> ModelSpec:
    return ModelSpec("made", 96, 100, (LayerGroup(3, mixer, mlp),), False, 1000)


def test_products_have_a_bias_where_the_model_has_one() -> None:
    names = {
        name: (attention, mlp)
        for name, attention, mlp in (
            ("none", {}, False),
            ("in", {"qkv_bias": True}, False),
            ("out", {"out_bias": True}, False),
            ("mlp", {}, True),
        )
    }
    biased = {
        name: [layer.name for layer in layers_of(stack(Attention(4, 2, 24, **flags), DenseMlp(200, mlp))) if layer.gemm.bias]
        for name, (flags, mlp) in names.items()
    }
    assert biased == {"none": [], "in": ["qkv"], "out": ["o"], "mlp": ["gate_up", "down"]}


@pytest.mark.parametrize(
    ("heads", "kv_heads", "intermediate", "tp"), [(28, 4, 512, 8), (40, 10, 512, 4), (8, 8, 100, 8)], ids=["heads", "KV heads", "MLP"]
)
def test_a_model_that_does_not_split_has_none(heads: int, kv_heads: int, intermediate: int, tp: int) -> None:
    model = stack(Attention(heads, kv_heads, 16), DenseMlp(intermediate))
    assert layers_of(model)
    assert layers_of(model, tp) == []


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("Phi-3.5-mini", {"qkv": (3072, 9216), "o": (3072, 3072), "gate_up": (3072, 16384), "down": (8192, 3072)}),
        ("Gemma-2-9B", {"qkv": (3584, 8192), "o": (4096, 3584), "gate_up": (3584, 28672), "down": (14336, 3584)}),
        ("gpt-oss-20b", {"qkv": (2880, 5120), "o": (4096, 2880)}),
        ("Mixtral-8x7B", {"qkv": (4096, 6144), "o": (4096, 4096)}),
        ("Mistral-Small-24B", {"qkv": (5120, 6144), "o": (4096, 5120), "gate_up": (5120, 65536), "down": (32768, 5120)}),
    ],
)
def test_sizes_are_those_of_the_published_weights(name: str, sizes: dict[str, tuple[int, int]]) -> None:
    """Fused: of Phi's checkpoint as published, of the others' q, k and v, and gate and up, side by side."""
    assert {layer.name: (layer.gemm.k, layer.gemm.n) for layer in layers_of(get_model(name))} == sizes
