"""What providers ask for tokens of a catalogue model: medians over their dated lists, made by studies/api_prices.py."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

API_PRICES = Path(__file__).parent / "data" / "api_prices.json"


@dataclass(frozen=True, slots=True)
class ApiPrice:
    """USD per million tokens, each the median over `providers`, and the month of the newest list."""

    usd_per_mtok_in: float
    usd_per_mtok_out: float
    providers: int
    date: str

    def text(self) -> str:
        """The prices in words."""
        whose = f"the median of {self.providers} providers" if self.providers > 1 else "one provider"
        return f"As an API, {whose} asked {self.usd_per_mtok_in:.3g} and {self.usd_per_mtok_out:.3g} in {self.date}"


def api_price(model: str) -> ApiPrice | None:
    """The prices of a catalogue model, None for one that no list has."""
    return _prices().get(model)


@cache
def _prices() -> dict[str, ApiPrice]:
    found = json.loads(API_PRICES.read_text(encoding="utf-8"))
    return {name: ApiPrice(**price) for name, price in found.items()}
