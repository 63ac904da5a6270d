"""Routers: which replica serves a request. They see what a router sees: what it has sent, not the inside of an engine.

    round-robin      in turn
    least-loaded     fewest requests in flight
    prefix-affinity  where most of the prompt's prefix was sent before, unless that replica has more than 1.3 times the mean in flight
    lmetric          least (pending prefill + new uncached + w * ongoing) * max(requests, 1), all in tokens but the last

Ties go to the lowest index. Formulas: package data scenarios/data/reference/routing/scoring_formulas.csv, the fixed variant, with its
race fix (a request counts from the moment it is sent).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Protocol

from sim.engine.types import Request
from sim.errors import UsageError

OVERLOAD_FACTOR = 1.3
DECODE_WEIGHT = 0.01


class Router(Protocol):
    """Picks a replica as a request is sent, and is told when it produced its first token and when it finished."""

    def pick(self, request: Request) -> int:
        """Index of the chosen replica."""

    def first_token(self, request: Request, replica: int) -> None:
        """The request's prefill is over."""

    def finished(self, request: Request, replica: int) -> None:
        """The request is done."""


@dataclass(slots=True)
class Load:
    """One replica as its router knows it. `prefixes` are block names it was sent, the least recently sent dropped beyond `capacity`."""

    capacity: int
    requests: int = 0
    pending_prefill_tokens: int = 0
    ongoing_tokens: int = 0
    prefixes: OrderedDict[Hashable, None] = field(default_factory=OrderedDict)

    def known_blocks(self, request: Request) -> int:
        """How many of the prompt's first blocks were sent here before."""
        count = 0
        for name in request.prompt_hashes:
            if name not in self.prefixes:
                break
            count += 1
        return count

    def remember(self, request: Request) -> None:
        """Note the request's blocks as sent here."""
        for name in request.prompt_hashes:
            self.prefixes[name] = None
            self.prefixes.move_to_end(name)
        while len(self.prefixes) > self.capacity:
            self.prefixes.popitem(last=False)


class LoadRouter:
    """Routes by a choice over the replicas' loads, which it keeps. `choose(loads, request)` returns an index."""

    def __init__(self, replicas: int, block_size: int, capacity: int, choose: Callable[[list[Load], Request, int], int]) -> None:
        self._loads = [Load(capacity) for _ in range(replicas)]
        self._block_size = block_size
        self._choose = choose
        self._new: dict[Request, int] = {}

    def pick(self, request: Request) -> int:
        """Choose, then reserve at once, so that the next choice already sees this request."""
        index = self._choose(self._loads, request, self._block_size)
        load = self._loads[index]
        new = uncached_tokens(load, request, self._block_size)
        self._new[request] = new
        load.requests += 1
        load.pending_prefill_tokens += new
        load.ongoing_tokens += request.prompt_tokens
        load.remember(request)
        return index

    def first_token(self, request: Request, replica: int) -> None:
        self._loads[replica].pending_prefill_tokens -= self._new.pop(request)

    def finished(self, request: Request, replica: int) -> None:
        load = self._loads[replica]
        load.requests -= 1
        load.ongoing_tokens -= request.prompt_tokens


class RoundRobin:
    """In turn, whatever the load."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._next = 0

    def pick(self, request: Request) -> int:
        index = self._next
        self._next = (index + 1) % self._replicas
        return index

    def first_token(self, request: Request, replica: int) -> None:
        pass

    def finished(self, request: Request, replica: int) -> None:
        pass


def uncached_tokens(load: Load, request: Request, block_size: int) -> int:
    """Prompt tokens that the replica was not sent before: at least one has to be computed."""
    return max(1, request.prompt_tokens - load.known_blocks(request) * block_size)


def least_loaded(loads: list[Load], request: Request, block_size: int) -> int:
    """Fewest requests in flight."""
    return min(range(len(loads)), key=lambda i: loads[i].requests)


def prefix_affinity(loads: list[Load], request: Request, block_size: int) -> int:
    """The longest known prefix, while its replica has at most OVERLOAD_FACTOR times the mean in flight; else the least loaded."""
    known = [load.known_blocks(request) for load in loads]
    best = max(range(len(loads)), key=lambda i: (known[i], -i))
    mean = sum(load.requests for load in loads) / len(loads)
    if known[best] and loads[best].requests <= max(OVERLOAD_FACTOR * mean, 1.0):
        return best
    return least_loaded(loads, request, block_size)


def lmetric(loads: list[Load], request: Request, block_size: int) -> int:
    """Least work ahead, weighted by how many share it."""

    def score(load: Load) -> float:
        new = uncached_tokens(load, request, block_size)
        return (load.pending_prefill_tokens + new + DECODE_WEIGHT * load.ongoing_tokens) * max(load.requests, 1)

    return min(range(len(loads)), key=lambda i: score(loads[i]))


_CHOICES = {"least-loaded": least_loaded, "prefix-affinity": prefix_affinity, "lmetric": lmetric}
ROUTERS = ("round-robin", *_CHOICES)


def make_router(name: str, replicas: int, block_size: int, capacity: int) -> Router:
    """A fresh router over `replicas`, each remembered for `capacity` blocks. Raises UsageError for an unknown name."""
    if name == "round-robin":
        return RoundRobin(replicas)
    if name not in _CHOICES:
        raise UsageError(f"unknown router {name!r}; known: {', '.join(ROUTERS)}")
    return LoadRouter(replicas, block_size, capacity, _CHOICES[name])
