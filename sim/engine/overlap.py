"""Host and GPU as two clocks that take turns: what asynchronous scheduling hides, and when what it decides takes effect.

An engine's host prepares every iteration (inputs, bookkeeping of its sequences) and, where no captured graph holds it, launches its
kernels one by one. A synchronous engine does that while the GPU stands still. An asynchronous one does it while the GPU computes the
iteration before, and only then collects that one's tokens and decides again:

    decided(k + 1) = sent(k - 1) = max(end(k - 1), decided(k) + host(k))
    end(k)         = max(end(k - 1), decided(k)) + price(k, head start max(end(k - 1) - decided(k), 0))

So host work shows only where it outlasts the GPU's work before it: always in the first iteration after idleness, and not in the next;
the tokens of an iteration wait for the launch of its successor; and a request that arrives during such a launch is in time for the very
next decision. vLLM 0.23 as served on an H100 shows all three (docs/validation.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.engine.boost import NO_BOOST, Boost, Rested
from sim.errors import require_not_negative


@dataclass(frozen=True, slots=True)
class HostWork:
    """Seconds of host work per iteration, per sequence in it, and for carrying prefill, that can hide behind the GPU; and seconds by which
    launching kernel by kernel is later in the mean than in the middle, because a host has spells.
    """

    iteration_s: float = 0.0
    sequence_s: float = 0.0
    prefill_s: float = 0.0
    late_launch_s: float = 0.0

    def __post_init__(self) -> None:
        require_not_negative(self, "host work", "time", " s")


NO_WORK = HostWork()


class Pipeline:
    """The two clocks of one replica, in ticks: `decides` is when the next decision is made, `ends` when the GPU is through."""

    __slots__ = ("_rested", "decides", "ends")

    def __init__(self, boost: Boost = NO_BOOST) -> None:
        self.decides = 0
        self.ends = 0
        self._rested = Rested(boost)

    @property
    def head_start(self) -> int:
        """Ticks between the next decision and the GPU being free for it."""
        return max(self.ends - self.decides, 0)

    def idle_until(self, now: int) -> None:
        """Decide next at `now`, no sooner than the GPU is through, with nothing ahead of it."""
        self.decides = self.ends = max(now, self.ends)

    def sends(self, host: int) -> int:
        """When the tokens of the iteration before are sent, if the next decision keeps the host for `host` ticks."""
        return max(self.ends, self.decides + host)

    def rested(self, products: int) -> bool:
        """Whether the next iteration, of which so many ticks are products, finds a GPU that has rested."""
        return self._rested.covers(max(self.ends, self.decides), products)

    def launched(self, host: int, ticks: int, products: int = 0, rested: bool = False) -> None:
        """The decision was made: `host` ticks of the host's work and `ticks` of the GPU's, as priced with this head start, of a GPU that
        has rested or has not, and its `products`.
        """
        sent = self.sends(host)
        start = max(self.ends, self.decides)
        self._rested.computed(start, products, rested)
        self.ends = start + ticks
        self.decides = sent
