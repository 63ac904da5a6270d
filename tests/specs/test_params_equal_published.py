"""Parameter counts computed from the shape equal the published ones: to the last parameter, or to the digits that were published."""

import pytest

from sim.deployment.memory import resident_weight_bytes
from sim.specs.models import get_model, list_models, published_params
from sim.specs.precision import Precision

EXACT = [name for name in list_models() if isinstance(published_params(name), int)]
ROUNDED = [name for name in list_models() if not isinstance(published_params(name), int)]


@pytest.mark.parametrize("name", EXACT)
def test_exact_counts(name):
    assert get_model(name).params == published_params(name)


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_counts(name):
    """Only the count in the model's name is published without its multi-token-prediction layer: whole billions."""
    stated = published_params(name)
    assert stated.endswith("B")
    assert round(get_model(name).params / 1e9) == int(stated[:-1])


def test_catalogue_is_wide_enough():
    assert len(list_models()) >= 24
    assert len(EXACT) >= 20


@pytest.mark.parametrize(
    ("name", "total", "active", "experts", "checkpoint_bytes", "checkpoint_gib"),
    [("gpt-oss-20b", 20.91, 3.61, 19.12, 13_761_264_768, 12.8), ("gpt-oss-120b", 116.83, 5.13, 114.71, 65_248_815_744, 60.8)],
)
def test_gpt_oss_card(name, total, active, experts, checkpoint_bytes, checkpoint_gib):
    """The model card's table (billions to two decimals, GiB to one; its MLP row counts experts and router) and the weight index's bytes."""
    spec = get_model(name)
    router = sum(g.count * g.mlp.always_params(spec.hidden) for g in spec.groups)
    assert round(spec.params / 1e9, 2) == total
    assert round(spec.active_params / 1e9, 2) == active
    assert round((spec.expert_params + router) / 1e9, 2) == experts
    resident = resident_weight_bytes(spec, Precision("bf16"))
    assert resident == checkpoint_bytes
    assert round(resident / 2**30, 1) == checkpoint_gib


@pytest.mark.parametrize(("name", "billions", "digits"), [("DeepSeek-V3", 37, 0), ("Qwen3-235B-A22B", 22, 0)])
def test_active_counts_as_published(name, billions, digits):
    assert round(get_model(name).active_params / 1e9, digits) == billions


@pytest.mark.parametrize(("name", "billions", "digits"), [("Mixtral-8x7B", 12.9, 1), ("Llama-4-Scout", 17, 0), ("Llama-4-Maverick", 17, 0)])
def test_some_active_counts_include_the_embedding(name, billions, digits):
    """The counts published for Mixtral and Llama 4 have the input embedding, too; ours leaves out what is only looked up."""
    spec = get_model(name)
    assert round((spec.active_params + spec.embedding_params) / 1e9, digits) == billions


@pytest.mark.parametrize(("name", "billions"), [("Llama-4-Scout", 109), ("Llama-4-Maverick", 400)])
def test_llama_4_card(name, billions):
    """The model card's totals: 109B, and 400B of which the last digits are rounded off."""
    assert get_model(name).params / 1e9 == pytest.approx(billions, rel=0.005)
