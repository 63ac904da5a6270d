"""Host and GPU as two clocks that take turns: what asynchronous scheduling hides, and when what it decides takes effect.

An engine's host prepares every iteration (inputs, bookkeeping of its sequences) and, where no captured graph holds it, launches its kernels
one by one. A synchronous engine does that while the GPU stands still. An asynchronous one does it while the GPU computes the iteration
before, and only then collects that one's tokens and decides again:

    decided(k + 1) = sent(k - 1) = max(end(k - 1), decided(k) + host(k))
    end(k)         = max(end(k - 1), decided(k)) + price(k, head start max(end(k - 1) - decided(k), 0))

So host work shows only where it outlasts the GPU's work before it: always in the first iteration after idleness, and not in the next; the
tokens of an iteration wait for the launch of its successor; and a request that arrives during such a launch is in time for the very next
decision. vLLM 0.23 as served on an H100 shows all three (docs/validation.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import require_not_negative


@dataclass(frozen=True, slots=True)
class HostWork:
    """Seconds of host work per iteration, per sequence in it, and for carrying prefill, that can hide behind the GPU."""

    iteration_s: float = 0.0
    sequence_s: float = 0.0
    prefill_s: float = 0.0

    def __post_init__(self) -> None:
        require_not_negative(self, "host work", "time", " s")

    def scaled(self, factor: float) -> HostWork:
        """The same work on a host that takes `factor` times as long."""
        return HostWork(self.iteration_s * factor, self.sequence_s * factor, self.prefill_s * factor)


NO_WORK = HostWork()


class Pipeline:
    """The two clocks of one replica, in ticks: `decides` is when the next decision is made, `ends` when the GPU is through."""

    __slots__ = ("decides", "ends")

    def __init__(self) -> None:
        self.decides = 0
        self.ends = 0

    @property
    def head_start(self) -> int:
        """Ticks between the next decision and the GPU being free for it."""
        ahead = self.ends - self.decides
        return ahead if ahead > 0 else 0

    def idle_until(self, now: int) -> None:
        """Decide next at `now`, no sooner than the GPU is through, with nothing ahead of it."""
        self.decides = self.ends = max(now, self.ends)

    def sends(self, host: int) -> int:
        """Sending time of the tokens of the iteration before, if the next decision keeps the host for `host` ticks."""
        launched = self.decides + host
        return launched if launched > self.ends else self.ends

    def launched(self, host: int, ticks: int) -> None:
        """The decision was made: `host` ticks of the host's work and `ticks` of the GPU's, as priced with this head start."""
        decides, ends = self.decides, self.ends
        self.ends = (ends if ends > decides else decides) + ticks
        self.decides = ends if ends > decides + host else decides + host  # when `sends` says
