"""Routers as deployed, by name: what each knows, its rule and its ties.

    vllm-router          cache_aware of vllm-router 0.1.17. Loads are its own requests in flight. The fewest where they are unbalanced (the
                         most exceed them by `balance_abs_threshold`, and `balance_rel_threshold` times); else, of those that were sent the
                         longest known beginning of the prompt, the fewest, if that is more than `cache_threshold` of it; else the fewest
    sglang-router        cache_aware of sglang-router 0.3.2: the same, but that beginning belongs to whoever was sent it first
    llm-d                its endpoint picker's default scorers: highest `queue` * min-max of waiting requests + `kv` * free share of KV +
                         `prefix` * share of the prompt's blocks of 64 tokens that it sent there; engines are read every `scrape_s`
    dynamo               Dynamo's KV router: least `prefill_load_scale` * max(blocks to prefill there + the prompt's - `overlap_credit` *
                         its cached ones, 0) + active blocks with this prompt + `active_request_weight` * requests; caches by events
    kubernetes-service   `mode` iptables: at random, a connection a request; ipvs: in turn

The first two were run beside their packages: of 1,000 requests to four servers, some answered late, every pick is that of the rule
(tests/cluster/test_deployed_routers_pick_as_their_packages.py). The others follow their published formulas. Ties: the first in order for
the first two, else at random. Left out: eviction from the routers' trees, sessions, several replicas of a router.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from sim.cluster.policies import draws_of, one_of, weighted_scores
from sim.cluster.sent_blocks import SentBlocks
from sim.engine.interface import Request
from sim.errors import UsageError
from sim.ticks import to_ticks

MATCHED, BALANCED = "prefix", "load"
EPP_BLOCK = 64  # tokens of a block that llm-d's picker hashes, at least
Gauges = Callable[[int], tuple[int, int, int]]
"""Requests waiting at a replica's engine and running there, and its KV blocks in use, now."""


class CacheAware:
    """cache_aware of vllm-router."""

    first_owner = False  # whether a beginning belongs to whoever was sent it first

    def __init__(
        self,
        replicas: int,
        block_size: int,
        capacity: int = 0,
        *,
        cache_threshold: float = 0.3,
        balance_abs_threshold: int = 64,
        balance_rel_threshold: float = 1.5,
        dispatch_s: float = 0.0,
    ) -> None:
        self.dispatch_s, self.decision = dispatch_s, BALANCED
        self._threshold, self._abs, self._rel = cache_threshold, balance_abs_threshold, balance_rel_threshold
        self._block = block_size
        self._loads = [0] * replicas
        self._owners: dict[Hashable, list[int]] = {}  # of a beginning by its last block, in the order in which they were sent it

    def pick(self, request: Request, up: Sequence[int], now: int) -> int:
        chosen = self._choice(request, up)
        for name in request.prompt_hashes:
            owners = self._owners.setdefault(name, [])
            if chosen not in owners:
                owners.append(chosen)
        self._loads[chosen] += 1
        return chosen

    def _choice(self, request: Request, up: Sequence[int]) -> int:
        loads = self._loads
        most, fewest = max(loads[i] for i in up), min(loads[i] for i in up)
        self.decision = BALANCED
        if most - fewest > self._abs and most > self._rel * fewest:
            return min(up, key=loads.__getitem__)
        depth, owners = 0, list[int]()
        for name in request.prompt_hashes:
            if not (there := [i for i in self._owners.get(name, ()) if i in up]):
                break
            depth, owners = depth + 1, there
        if not owners or depth * self._block / request.prompt_tokens <= self._threshold:
            return min(up, key=loads.__getitem__)
        self.decision = MATCHED
        return owners[0] if self.first_owner else min(sorted(owners), key=loads.__getitem__)

    def first_token(self, request: Request, replica: int, now: int) -> None:
        pass

    def finished(self, request: Request, replica: int, now: int) -> None:
        self._loads[replica] -= 1


class SglangCacheAware(CacheAware):
    """cache_aware of sglang-router."""

    first_owner = True


class EndpointPicker:
    """llm-d's. `gauges`, set by the fleet, are read at the first pick of each `scrape_s`."""

    decision = "scores"

    def __init__(
        self,
        replicas: int,
        block_size: int,
        capacity: int,
        *,
        queue: float = 2.0,
        kv: float = 2.0,
        prefix: float = 3.0,
        scrape_s: float = 0.05,
        dispatch_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.dispatch_s = dispatch_s
        self.gauges: Gauges = lambda _: (0, 0, 0)
        self._weights, self._period, self._periods = (queue, kv, prefix), max(to_ticks(scrape_s), 1), -1
        self._read = [(0, 0, 0)] * replicas
        self._stride = max(EPP_BLOCK // block_size, 1)  # blocks of the engine in one of its own
        self._tokens, self._capacity = self._stride * block_size, max(capacity, 1)
        self._sent, self._draws = SentBlocks(replicas, self._capacity), draws_of(seed)

    def pick(self, request: Request, up: Sequence[int], now: int) -> int:
        if now // self._period > self._periods:
            self._periods, self._read = now // self._period, [self.gauges(i) for i in range(len(self._read))]
        names = request.prompt_hashes[self._stride - 1 :: self._stride]
        known = self._sent.known(names)
        scores = self.scores([self._read[i] for i in up], [known[i] for i in up], request.prompt_tokens)
        chosen = up[one_of(scores, max(scores), next(self._draws)[1])]
        self._sent.send(names, chosen)
        return chosen

    def scores(self, read: Sequence[tuple[int, int, int]], known: Sequence[int], prompt_tokens: int) -> list[float]:
        """Of each replica: the weighted sum over what was read there, and the blocks of the prompt that were sent there."""
        blocks = max(prompt_tokens // self._tokens, 1)
        waiting, used = [each[0] for each in read], [each[2] / self._capacity for each in read]
        return weighted_scores(self._weights, waiting, used, [there / blocks for there in known])

    def first_token(self, request: Request, replica: int, now: int) -> None:
        pass

    def finished(self, request: Request, replica: int, now: int) -> None:
        pass


class DynamoKv:
    """Dynamo's KV router. `cached`, set by the fleet, are the blocks of a prompt in a replica's cache; active blocks that several requests
    of a replica have count once.
    """

    decision = "cost"
    sees_caches = True

    def __init__(
        self,
        replicas: int,
        block_size: int,
        capacity: int = 0,
        *,
        overlap_credit: float = 1.0,
        prefill_load_scale: float = 1.0,
        active_request_weight: float = 0.0,
        dispatch_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.dispatch_s = dispatch_s
        self.cached: Callable[[int, Request], int] | None = None
        self._credit, self._scale, self._each, self._block = overlap_credit, prefill_load_scale, active_request_weight, block_size
        self._prefill = [0] * replicas  # tokens
        self._own = [0] * replicas  # active blocks that nobody else asks for
        self._active: list[Counter[Hashable]] = [Counter() for _ in range(replicas)]
        self._requests = [0] * replicas
        self._pending: dict[Request, int] = {}
        self._draws = draws_of(seed)

    def pick(self, request: Request, up: Sequence[int], now: int) -> int:
        cached = [self.cached(i, request) if self.cached else 0 for i in up]
        costs = [self.cost(request, i, there) for i, there in zip(up, cached, strict=True)]
        place = one_of(costs, min(costs), next(self._draws)[1])
        chosen = up[place]
        self._pending[request] = max(request.prompt_tokens - cached[place] * self._block, 0)
        self._prefill[chosen] += self._pending[request]
        self._active[chosen].update(request.prompt_hashes)
        self._own[chosen] += self._blocks(request) - len(request.prompt_hashes)
        self._requests[chosen] += 1
        return chosen

    def cost(self, request: Request, replica: int, cached: int) -> float:
        """Blocks that a replica would have to prefill and to hold."""
        blocks, active = self._blocks(request), self._active[replica]
        new = blocks - sum(name in active for name in request.prompt_hashes)
        prefill = max(self._prefill[replica] / self._block + blocks - self._credit * cached, 0.0)
        return self._scale * prefill + len(active) + self._own[replica] + new + self._each * self._requests[replica]

    def _blocks(self, request: Request) -> int:
        return max(math.ceil(request.prompt_tokens / self._block), len(request.prompt_hashes))

    def first_token(self, request: Request, replica: int, now: int) -> None:
        self._prefill[replica] -= self._pending.get(request, 0)
        self._pending[request] = 0

    def finished(self, request: Request, replica: int, now: int) -> None:
        self.first_token(request, replica, now)
        del self._pending[request]
        active = self._active[replica]
        active.subtract(request.prompt_hashes)
        for name in request.prompt_hashes:
            if not active[name]:
                del active[name]
        self._own[replica] -= self._blocks(request) - len(request.prompt_hashes)
        self._requests[replica] -= 1


MODES = ("iptables", "ipvs")


class KubernetesService:
    """A Service without a router behind it."""

    def __init__(
        self, replicas: int, block_size: int = 0, capacity: int = 0, *, mode: str = MODES[0], dispatch_s: float = 0.0, seed: int = 0
    ) -> None:
        if mode not in MODES:
            raise UsageError(f"mode must be {' or '.join(MODES)}, got {mode!r}")
        self.dispatch_s, self.decision = dispatch_s, mode
        self._draws, self._next = draws_of(seed), 0

    def pick(self, request: Request, up: Sequence[int], now: int) -> int:
        if self.decision == MODES[0]:
            return up[one_of([0] * len(up), 0, next(self._draws)[0])]
        index = next((index for index in up if index >= self._next), up[0])
        self._next = index + 1
        return index

    def first_token(self, request: Request, replica: int, now: int) -> None:
        pass

    def finished(self, request: Request, replica: int, now: int) -> None:
        pass
