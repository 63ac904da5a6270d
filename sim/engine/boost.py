"""What a GPU that has rested computes faster: its power limit lets it draw more than it may for long.

A GPU under a power limit lowers its clock once it has drawn too much for some time, and decodes, which wait for memory, draw little. So the
products of the first iterations of prefill after decodes, or after idleness, are computed faster than those of the second tenth of a second
of nothing else, which is what grids repeat and rates are learnt from. Here that is an account of rested time, in ticks of products: full at
the beginning, an iteration that finds at least half of its products on it is priced at faster products and takes them off it, and time
without products fills it again. Integers alone, brought up to date only where products are computed: who jumps over decode iterations and
who takes them one by one agree to the last tick.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sim.engine.ticks import to_ticks
from sim.errors import require_not_negative
from sim.rates import Rates

PRODUCTS = ("linear_flops_per_s", "attention_flops_per_s", "expert_flops_per_s")
_SCALE = 20  # shares are counted in units of 2**-20


@dataclass(frozen=True, slots=True)
class Boost:
    """The share by which products are computed faster than the rates say, seconds of them that a rested GPU computes so, and how many
    such seconds a second without products earns.
    """

    share: float = 0.0
    budget_s: float = 0.0
    refill: float = 0.0

    def __post_init__(self) -> None:
        require_not_negative(self, "boost", "number")

    def rested(self, rates: Rates) -> Rates:
        """The rates of a GPU that has rested."""
        return replace(rates, **{name: getattr(rates, name) * (1.0 + self.share) for name in PRODUCTS})


NO_BOOST = Boost()


class Rested:
    """The account of one replica's GPU."""

    __slots__ = ("_earns", "_left", "_most", "_since")

    def __init__(self, boost: Boost) -> None:
        self._earns = round(boost.refill * (1 << _SCALE))
        self._left = self._most = to_ticks(boost.budget_s)
        self._since = 0

    def covers(self, start: int, products: int) -> bool:
        """Whether an iteration that begins at `start` computes its `products` rested: at least half of them are left on the account."""
        if not products or not self._most:
            return False
        self._left = min(self._left + ((max(start - self._since, 0) * self._earns) >> _SCALE), self._most)
        self._since = max(start, self._since)
        return 2 * self._left >= products

    def computed(self, start: int, products: int, rested: bool) -> None:
        """It does; what a rested iteration takes beyond what is left has to be earned first."""
        if products:
            self._left -= products if rested else 0
            self._since = max(start + products, self._since)
