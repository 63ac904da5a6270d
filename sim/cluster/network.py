"""The network between replicas: links that the transfers on them share fairly.

Every transfer takes a path of links. Rates are max-min fair: all grow together until a link is full, those on it keep what they have, and
the others grow on. On a single link this is processor sharing. A transfer of no bytes takes its latency alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from sim.cluster.clock import CLIENTS, Clock
from sim.errors import UsageError
from sim.ticks import ARRIVAL, TICK_S, to_ticks

SPENT = 1e-9  # of a transfer's bytes: what rounding to ticks leaves of it


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """Network of all replicas, beside the links of each: a latency, and one shared link's bandwidth in bytes per second."""

    latency_s: float = 0.0
    shared_bytes_per_s: float = math.inf


NETWORK = NetworkSpec()


@dataclass(slots=True, eq=False)
class Transfer:
    """Bytes on their way; `rate` in bytes per second."""

    path: Sequence[Hashable]
    left: float
    least: float
    done: Callable[[], None]
    rate: float = 0.0


class Network:
    """Links by name with their bandwidth in bytes per second, infinite ones not in anyone's way. Raises UsageError for none above 0."""

    def __init__(self, clock: Clock, links: Mapping[Hashable, float], latency_s: float = 0.0) -> None:
        for name, bandwidth in links.items():
            if not bandwidth > 0:
                raise UsageError(f"link {name} needs a bandwidth above 0, got {bandwidth:g}")
        self._clock = clock
        self.links = links
        self._latency = to_ticks(latency_s)
        self._transfers: dict[Transfer, None] = {}
        self._since = 0  # when `left` was true
        self._looks = 0  # the latest call to look again; earlier ones are stale

    def send(self, size: float, path: Sequence[Hashable], done: Callable[[], None]) -> None:
        """Move `size` bytes along `path` and call `done()` when the last has arrived."""
        self._clock.call(self._clock.now + self._latency, ARRIVAL, CLIENTS, self._begin, Transfer(path, size, SPENT * size, done))

    def _begin(self, transfer: Transfer) -> None:
        transfer.path = [name for name in transfer.path if self.links[name] < math.inf]
        if transfer.left <= 0 or not transfer.path:
            transfer.done()
            return
        self._advance()
        self._transfers[transfer] = None
        self._share()

    def _advance(self) -> None:
        """Bytes that have moved since the rates last changed."""
        passed_s = (self._clock.now - self._since) * TICK_S
        self._since = self._clock.now
        for transfer in self._transfers:
            transfer.left -= transfer.rate * passed_s

    def _share(self) -> None:
        """New rates, and a look when the first transfer is over."""
        set_fair_rates(self._transfers, self.links)
        self._looks += 1
        if self._transfers:
            first_s = min(max(each.left, 0.0) / each.rate for each in self._transfers)
            self._clock.call(self._clock.now + math.ceil(first_s / TICK_S), ARRIVAL, CLIENTS, self._look, self._looks)

    def _look(self, look: int) -> None:
        if look != self._looks:
            return
        self._advance()
        over = [each for each in self._transfers if each.left <= each.least]
        for each in over:
            del self._transfers[each]
        self._share()
        for each in over:
            each.done()


def set_fair_rates(transfers: Mapping[Transfer, None], links: Mapping[Hashable, float]) -> None:
    """Give every transfer its max-min fair rate: the link with least for each of those still growing fills first."""
    growing: dict[Hashable, list[Transfer]] = {}
    for transfer in transfers:
        transfer.rate = 0.0
        for link in transfer.path:
            growing.setdefault(link, []).append(transfer)
    room = {link: links[link] for link in growing}
    while growing:
        fullest = min(growing, key=lambda link: room[link] / len(growing[link]))
        rate = room[fullest] / len(growing[fullest])
        for transfer in growing[fullest]:
            transfer.rate = rate
            for link in transfer.path:
                if link != fullest:
                    room[link] -= rate
                    growing[link].remove(transfer)
        del growing[fullest]
        growing = {link: rest for link, rest in growing.items() if rest}
