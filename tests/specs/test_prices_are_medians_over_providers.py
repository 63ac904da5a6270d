"""A card's market price is the median over providers, of a provider its least offer; on-demand before spot, spot before buying."""

import pytest

from sim.specs.gpus import get_gpu, list_gpus, market
from studies.gpu_prices import OWNED_H, reduced


def _offer(provider, kind, usd, as_of="2026-05-24", gpu="L4"):
    column = "purchase_usd" if kind == "purchase" else "usd_per_gpu_hour"
    return {"gpu": gpu, "provider": provider, "kind": kind, column: usd, "as_of": as_of}


def test_a_provider_counts_once_and_an_undated_offer_not_at_all():
    offers = [_offer("A cloud", "on_demand", "3"), _offer("a", "on_demand", "1", "2026-06"), _offer("B", "on_demand", "2")]
    offers += [_offer("C", "on_demand", "9"), _offer("D", "on_demand", "50", "undated"), _offer("A", "spot", "0.1")]
    price = {"usd_per_hour": 2.0, "low": 1.0, "high": 9.0, "kind": "on_demand", "providers": 3, "date": "2026-06"}
    assert reduced(offers) == {"L4": price}


def test_a_card_that_is_only_sold_is_spread_over_three_years():
    found = reduced([_offer("maker", "purchase", "5256", gpu="GB10")])
    assert found["GB10"]["usd_per_hour"] == pytest.approx(5256 / OWNED_H, abs=5e-4)
    assert "three years" in get_gpu("GB10").price_source


def test_every_card_of_the_table_is_priced_and_the_catalogue_says_how():
    for name in list_gpus():
        if (found := market(name)) is not None:
            gpu = get_gpu(name)
            assert gpu.price_per_hour == found[0] or "on-demand list price" in gpu.price_source
