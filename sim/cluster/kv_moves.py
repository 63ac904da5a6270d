"""KV that comes to a replica from elsewhere before a request is computed there: from a store that all share, or from another replica."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from sim.cluster.network import Network
from sim.cluster.pools import BUSIEST, RunningPool
from sim.cluster.replica import Replica, State
from sim.engine.interface import Request
from sim.errors import UsageError

STORE_OUT, STORE_IN = "store out", "store in"


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A store of KV blocks beside the replicas, host RAM of other nodes say: its size, and its bandwidth in and out, bytes and bytes/s."""

    size: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not (self.size > 0 and self.bytes_per_s > 0):
            raise UsageError(f"a KV store needs a size and a bandwidth above 0, got {self.size:g} and {self.bytes_per_s:g}")


class KvStore:
    """The blocks in a store, by name: the least recently used leave first."""

    def __init__(self, size: float) -> None:
        self._size = size
        self._used = 0.0
        self._bytes: OrderedDict[Hashable, float] = OrderedDict()

    def holds(self, names: Sequence[Hashable]) -> int:
        """Number of the first of these blocks that it holds; they count as used."""
        for place, name in enumerate(names):
            if name not in self._bytes:
                return place
            self._bytes.move_to_end(name)
        return len(names)

    def lacks(self, names: Sequence[Hashable]) -> list[Hashable]:
        """Those of the blocks that it does not hold."""
        return [name for name in names if name not in self._bytes]

    def put(self, names: Sequence[Hashable], block_bytes: float) -> None:
        """Keep these blocks; those beyond its size leave."""
        for name in names:
            if name not in self._bytes:
                self._bytes[name] = block_bytes
                self._used += block_bytes
            self._bytes.move_to_end(name)
        while self._used > self._size:
            _, freed = self._bytes.popitem(last=False)
            self._used -= freed


class KvMoves:
    """Fetches what a replica lacks of a prompt, where that is more than its own cache has, and keeps a store filled."""

    def __init__(self, network: Network, spec: StoreSpec | None) -> None:
        self._network = network
        self._store = KvStore(spec.size) if spec else None

    def bring(self, request: Request, replica: Replica, running: RunningPool, go: Callable[[], None]) -> None:
        """Go on at once, or once the prompt's KV that another place has is at the replica."""
        if self._store is None and running.pool.fetch is None:
            go()
            return
        if not replica.engine.takes_kv:
            raise UsageError("this engine takes no KV of a prompt from another replica or a store; vllm does")
        size = running.pool.block_size
        names = request.prompt_hashes[: (request.prompt_tokens - 1) // size]
        blocks, path = self._best(request, replica, running, names)
        own = replica.engine.cached_blocks(request)
        if blocks <= own:
            go()
            return
        more = running.pool.kv_bytes(blocks * size) - running.pool.kv_bytes(own * size)
        self._network.send(more, [*path, ("in", replica.index)], partial(_brought, request, blocks * size, go))

    def _best(self, request: Request, replica: Replica, running: RunningPool, names: Sequence[Hashable]) -> tuple[int, Sequence[Hashable]]:
        """The most of the prompt's first blocks that there are elsewhere, and the way out from there."""
        blocks = self._store.holds(names) if self._store else 0
        path: Sequence[Hashable] = [STORE_OUT]
        others = [each for each in running.replicas if each is not replica and each.state is not State.DOWN]
        if running.pool.fetch is not None and others:
            if running.pool.fetch == BUSIEST:
                others = [max(others, key=lambda each: each.sent)]
            there, source = max(((min(each.engine.cached_blocks(request), len(names)), each) for each in others), key=lambda each: each[0])
            if there > blocks:
                blocks, path = there, [("out", source.index), "shared"]
        return blocks, path

    def keep(self, request: Request, replica: Replica, running: RunningPool) -> None:
        """The replica has computed the request: the store gets the blocks that it lacks."""
        if self._store is None:
            return
        size = running.pool.block_size
        names = request.prompt_hashes[: (request.known_tokens - 1) // size]
        lacks = self._store.lacks(names)
        if lacks:
            block = running.pool.kv_bytes(size)
            put = partial(self._store.put, names, block)
            self._network.send(len(lacks) * block, [("out", replica.index), STORE_IN], put)


def _brought(request: Request, tokens: int, go: Callable[[], None]) -> None:
    if not request.cancelled:
        request.computed_tokens = request.cached_tokens = tokens
    go()
