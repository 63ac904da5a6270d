"""Routers: which replica serves a request. They see what a router sees: what it has sent, and on request what caches hold.

A router is one entry of ROUTERS: round-robin, random, weighted scorers, a policy over loads (POLICIES of sim.cluster.policies), or one as
deployed (sim.cluster.deployed_routers). It can also be the dotted path of a class with the methods of Router, made of the number of
replicas, the block size, a replica's KV blocks, and its options.
Options are keyword arguments:

    dispatch_s    how long a request is on its way from being routed to its replica
    snapshot_s    the policy sees loads as they were at the last multiple of this period, before anything happened at that instant; 0: now
    reserve_s     how long after its pick a request counts in the load of its replica: those that are routed meanwhile do not see it (the
                  race of the published routing study); 0: picked and counted in one step
    view          which prompt blocks a replica has: those that the router sent there and remembers, or (cache) those in its cache now
    remembers     blocks of each replica that the router remembers; 0: as many as the replica has
    seed          of the draws by which ties are broken

What the router remembers has neither snapshot nor window.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any, Protocol

from sim.cluster.deployed_routers import CacheAware, DynamoKv, EndpointPicker, KubernetesService, SglangCacheAware
from sim.cluster.policies import (
    AFFINITY,
    FALLBACK,
    OVERLOAD_FACTOR,
    POLICIES,
    Choice,
    Draws,
    Load,
    draws_of,
    mean_requests,
    one_of,
    weighted_scores,
)
from sim.cluster.sent_blocks import SentBlocks
from sim.engine.interface import Request
from sim.engine.registry import made_by_path
from sim.errors import UsageError
from sim.specs.lookup import did_you_mean
from sim.ticks import to_ticks

VIEWS = ("sent", "cache")
NEEDS = ("dispatch_s", "decision", "pick", "first_token", "finished")  # of a class of one's own
MOST = 1e9  # of any number among the options


class Router(Protocol):
    """Picks a replica as a request is sent, and hears when the request produced its first token and left. `now` in ticks."""

    dispatch_s: float
    decision: str  # the way in which its latest pick was made

    def pick(self, request: Request, up: Sequence[int], now: int) -> int:
        """The chosen one of the replicas that take requests: `up`, ascending indices."""

    def first_token(self, request: Request, replica: int, now: int) -> None:
        """The request's prefill is over."""

    def finished(self, request: Request, replica: int, now: int) -> None:
        """The request is done, or its replica lost it."""


class RoundRobin:
    """In turn, whatever the load."""

    decision = "round-robin"

    def __init__(self, replicas: int, block_size: int = 0, capacity: int = 0, *, dispatch_s: float = 0.0) -> None:
        self.dispatch_s = dispatch_s
        self._next = 0

    def pick(self, request: Request, up: Sequence[int], now: int) -> int:
        index = next((index for index in up if index >= self._next), up[0])
        self._next = index + 1
        return index

    def first_token(self, request: Request, replica: int, now: int) -> None:
        pass

    def finished(self, request: Request, replica: int, now: int) -> None:
        pass


class Random(RoundRobin):
    """Any replica, with equal chances."""

    decision = "random"

    def __init__(self, replicas: int, block_size: int = 0, capacity: int = 0, *, seed: int = 0, dispatch_s: float = 0.0) -> None:
        super().__init__(replicas, dispatch_s=dispatch_s)
        self._random = random.Random(seed)

    def pick(self, request: Request, up: Sequence[int], now: int) -> int:
        return self._random.choice(up)


class LoadRouter:
    """Routes by a policy over the replicas' loads, which it keeps. `cached`, set by the fleet, gives the blocks in a replica's cache."""

    def __init__(
        self,
        choose: Choice,
        replicas: int,
        block_size: int,
        capacity: int,
        *,
        dispatch_s: float = 0.0,
        snapshot_s: float = 0.0,
        reserve_s: float = 0.0,
        view: str = VIEWS[0],
        remembers: int = 0,
        seed: int = 0,
    ) -> None:
        if view not in VIEWS:
            raise UsageError(f"view must be {' or '.join(VIEWS)}, got {view!r}")
        self.dispatch_s = dispatch_s
        self.cached: Callable[[int, Request], int] | None = None
        self.sees_caches = view == "cache"
        self._window = to_ticks(reserve_s)
        self._unreserved: deque[tuple[int, Request, int]] = deque()  # when it counts, and where
        self._loads = [Load() for _ in range(replicas)]
        self._blocks = SentBlocks(replicas, remembers or capacity)
        self._block_size = block_size
        self._kv_tokens = capacity * block_size
        self._choose = choose
        self._draws = draws_of(seed)
        self.decision = getattr(choose, "__name__", "policy")
        self._pending: dict[Request, int] = {}  # new tokens of requests without a first token
        self._reserved: dict[Request, None] = {}
        self._period = to_ticks(snapshot_s)
        self._periods = 0  # that had begun at the latest snapshot
        self._snapshot = self._loads if not self._period else [Load() for _ in range(replicas)]

    def pick(self, request: Request, up: Sequence[int], now: int) -> int:
        self._advance(now)
        loads, size = self._snapshot, self._block_size
        if self.cached is not None:
            known = [self.cached(place, request) for place in up]
        else:
            known = self._blocks.known(request.prompt_hashes)
            if len(up) < len(known):
                known = [known[i] for i in up]
        if len(up) < len(loads):
            loads = [loads[i] for i in up]
        new = [max(1, request.prompt_tokens - blocks * size) for blocks in known]  # at least one has to be computed
        place = self._place(request, loads, known, new, next(self._draws))
        self._pending[request] = new[place]
        if self.cached is None:
            self._blocks.send(request.prompt_hashes, up[place])
        if self._window:
            self._unreserved.append((now + self._window, request, up[place]))
        else:
            self._reserve(request, up[place])
        return up[place]

    def first_token(self, request: Request, replica: int, now: int) -> None:
        self._advance(now)
        tokens = self._pending.pop(request, 0)
        if request in self._reserved:
            self._loads[replica].pending_prefill_tokens -= tokens

    def finished(self, request: Request, replica: int, now: int) -> None:
        self.first_token(request, replica, now)  # where it had none
        if request not in self._reserved:
            self._unreserved = deque(each for each in self._unreserved if each[1] is not request)
            return
        del self._reserved[request]
        load = self._loads[replica]
        load.requests -= 1
        load.ongoing_tokens -= request.prompt_tokens

    def _place(self, request: Request, loads: Sequence[Load], known: Sequence[int], new: Sequence[int], draws: Draws) -> int:
        """The choice, as a place among those that are up; it says how it was made in `decision`."""
        place = self._choose(loads, known, new, draws)
        self.decision = getattr(self._choose, "decision", self.decision)
        return place

    def _reserve(self, request: Request, replica: int) -> None:
        self._reserved[request] = None
        load = self._loads[replica]
        load.requests += 1
        load.pending_prefill_tokens += self._pending.get(request, 0)
        load.ongoing_tokens += request.prompt_tokens

    def _advance(self, now: int) -> None:
        """Count what is due, and take the snapshot of the period that it now is, before the first change in it."""
        while self._unreserved and self._unreserved[0][0] <= now:
            due, request, replica = self._unreserved.popleft()
            self._take_snapshot(due)
            self._reserve(request, replica)
        self._take_snapshot(now)

    def _take_snapshot(self, now: int) -> None:
        if self._period and (periods := now // self._period) > self._periods:
            self._periods, self._snapshot = periods, [copy(load) for load in self._loads]


class Weighted(LoadRouter):
    """The replica with the highest weighted sum of scores, as scorers of the Kubernetes Gateway API inference extension are configured.

    queue: 1 for the fewest requests in flight down to 0 for the most; kv: share of the KV cache that the prompts in flight leave free;
    prefix: share of the prompt's blocks that the replica has.
    """

    def __init__(
        self,
        replicas: int,
        block_size: int,
        capacity: int,
        *,
        queue: float = 2.0,
        kv: float = 2.0,
        prefix: float = 3.0,
        **more: Any,
    ) -> None:
        super().__init__(_never, replicas, block_size, capacity, **more)
        self.decision = "weighted"
        self._weights = queue, kv, prefix

    def _place(self, request: Request, loads: Sequence[Load], known: Sequence[int], new: Sequence[int], draws: Draws) -> int:
        blocks = max(request.prompt_tokens // self._block_size, 1)
        used = [load.ongoing_tokens / self._kv_tokens for load in loads]
        scores = weighted_scores(self._weights, [load.requests for load in loads], used, [there / blocks for there in known])
        return one_of(scores, max(scores), draws[1])


class AdapterAffinity(LoadRouter):
    """Of the replicas that hold the request's LoRA adapter, the one with the fewest requests in flight, unless it has more than
    `overload_factor` times the mean; else the fewest of all, of equals the one with the fewest adapters. `adapters`, set by the fleet, are
    those of each replica.
    """

    def __init__(self, replicas: int, block_size: int, capacity: int, *, overload_factor: float = OVERLOAD_FACTOR, **more: Any) -> None:
        super().__init__(_never, replicas, block_size, capacity, **more)
        self.adapters: Sequence[Collection[str]] = [()] * replicas
        self._overload_factor = overload_factor
        self._up: Sequence[int] = ()

    def pick(self, request: Request, up: Sequence[int], now: int) -> int:
        self._up = up
        return super().pick(request, up, now)

    def _place(self, request: Request, loads: Sequence[Load], known: Sequence[int], new: Sequence[int], draws: Draws) -> int:
        held = [self.adapters[replica] for replica in self._up]
        holders = {place: loads[place].requests for place, names in enumerate(held) if request.adapter in names}
        if holders:
            counts = list(holders.values())
            best = list(holders)[one_of(counts, min(counts), draws[0])]
            if loads[best].requests <= max(self._overload_factor * mean_requests(loads), 1.0):
                self.decision = AFFINITY
                return best
        self.decision = FALLBACK
        busy = [(load.requests, len(names)) for load, names in zip(loads, held, strict=True)]
        return one_of(busy, min(busy), draws[1])


def _never(loads: Sequence[Load], known: Sequence[int], new: Sequence[int], draws: Draws) -> int:
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ByLoad:
    """Makes a LoadRouter of a policy; its options are the policy's and the router's."""

    policy: Callable[..., Choice]

    def __call__(self, replicas: int, block_size: int, capacity: int, **options: Any) -> Router:
        own = {name: options.pop(name) for name in _defaults(self.policy) if name in options}
        return LoadRouter(self.policy(**own), replicas, block_size, capacity, **options)


ROUTERS: dict[str, Callable[..., Router]] = {
    "round-robin": RoundRobin,
    "random": Random,
    **{name: ByLoad(policy) for name, policy in POLICIES.items()},
    "weighted": Weighted,
    "adapter-affinity": AdapterAffinity,
    "vllm-router": CacheAware,
    "sglang-router": SglangCacheAware,
    "llm-d": EndpointPicker,
    "dynamo": DynamoKv,
    "kubernetes-service": KubernetesService,
}


@cache
def _defaults(called: Callable[..., object]) -> dict[str, Any]:
    return {each.name: each.default for each in signature(called).parameters.values() if each.kind is each.KEYWORD_ONLY}


def router_options(name: str) -> dict[str, Any]:
    """The options of a router, with their defaults; none for a class named by its path. Raises UsageError for an unknown name."""
    if "." in name.strip("."):
        return {}
    if name not in ROUTERS:
        raise UsageError(
            f"unknown router {name!r}{did_you_mean(name, ROUTERS) or ';'} known: {', '.join(ROUTERS)}, or the dotted path of a class"
        )
    entry = ROUTERS[name]
    if isinstance(entry, ByLoad):
        return _defaults(entry.policy) | _defaults(LoadRouter)
    return _defaults(entry) | (_defaults(LoadRouter) if entry in (Weighted, AdapterAffinity) else {})


def make_router(name: str, replicas: int, block_size: int, capacity: int, options: Mapping[str, Any] | None = None) -> Router:
    """A fresh router over `replicas`, each remembered for `capacity` blocks. Raises UsageError for an unknown name or option, or a value
    that an option cannot have.
    """
    known = router_options(name)
    if "." in name.strip("."):
        router: Router = made_by_path("router", name, NEEDS, replicas, block_size, capacity, **(options or {}))
        return router
    given = {}
    for option, value in (options or {}).items():
        if option not in known:
            raise UsageError(f"router {name} has no option {option!r}{did_you_mean(option, known)}; it has {', '.join(known) or 'none'}")
        given[option] = _checked(option, value, known[option])
    return ROUTERS[name](replicas, block_size, capacity, **given)


def _checked(option: str, value: object, default: object) -> object:
    """The value, as the option's type is. Raises UsageError for any other."""
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise UsageError(f"{option} must be true or false, got {value!r}")
        return value
    if isinstance(default, str):
        return value
    whole = isinstance(default, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not 0 <= value <= MOST:
        raise UsageError(f"{option} must be a {'whole ' if whole else ''}number from 0 to {MOST:g}, got {value!r}")
    return value if whole else float(value)
