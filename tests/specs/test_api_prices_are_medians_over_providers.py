"""What a model costs as an API is the median over providers, of a provider its least offer."""

from sim.specs.api_prices import api_price
from sim.specs.models import list_models
from studies.api_prices import named, reduced


def _offer(model, provider, read, written, as_of="2026-07-02"):
    return {"model": model, "provider": provider, "usd_per_mtok_in": read, "out": written, "as_of": as_of}


def test_a_provider_counts_once():
    rows = [
        _offer("qwen/qwen3-32b", "a", "0.3", "0.6"),
        _offer("Qwen3-32B", "a", "0.1", "0.3"),
        _offer("alibaba-qwen3-32b", "b", "0.5", "1.5"),
    ]
    assert reduced(rows) == {"Qwen3-32B": {"usd_per_mtok_in": 0.3, "usd_per_mtok_out": 0.9, "providers": 2, "date": "2026-07"}}


def test_a_larger_model_of_like_name_is_another():
    assert named("qwen.qwen3-32b-v1:0") == named("Qwen/Qwen3-32B") != named("qwen3-235b-a22b")
    assert named("google/gemma-3-27b-it") != named("google/gemma-3-12b-it")


def test_every_price_is_of_a_catalogue_model():
    found = {name: price for name in list_models() if (price := api_price(name))}
    assert len(found) >= 15
    assert all(0 < price.usd_per_mtok_in <= price.usd_per_mtok_out for price in found.values())
