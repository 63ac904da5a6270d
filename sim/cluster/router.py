"""Routers: which replica serves a request. They see what a router sees: what it has sent, not the inside of an engine.

    round-robin      in turn
    random           any, with equal chances
    least-requests   fewest requests in flight
    prefix-affinity  where most of the prompt's prefix was sent before, unless that replica has more than 1.3 times the mean in flight
    lmetric          least (pending_prefill + new_uncached + w * ongoing_decode) * max(num_requests, 1), all in tokens but the last

Ties go to the lowest index. Formulas: package data scenarios/data/reference/routing/scoring_formulas.csv, the fixed variant, with its race
fix (a request counts from the moment it is sent). A router is one entry of ROUTERS.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from sim.engine.interface import Request
from sim.errors import UsageError

OVERLOAD_FACTOR = 1.3
DECODE_WEIGHT = 0.01


class Router(Protocol):
    """Picks a replica as a request is sent, and is told when it produced its first token and when it left."""

    def pick(self, request: Request, up: Sequence[int]) -> int:
        """The chosen one of the replicas that take requests: `up`, ascending indices."""

    def first_token(self, request: Request, replica: int) -> None:
        """The request's prefill is over."""

    def finished(self, request: Request, replica: int) -> None:
        """The request is done, or its replica lost it."""


class RoundRobin:
    """In turn, whatever the load."""

    def __init__(self, replicas: int, block_size: int = 0, capacity: int = 0) -> None:
        self._next = 0

    def pick(self, request: Request, up: Sequence[int]) -> int:
        index = next((index for index in up if index >= self._next), up[0])
        self._next = index + 1
        return index

    def first_token(self, request: Request, replica: int) -> None:
        pass

    def finished(self, request: Request, replica: int) -> None:
        pass


class Random(RoundRobin):
    """Any replica; the same in every run."""

    def __init__(self, replicas: int, block_size: int = 0, capacity: int = 0) -> None:
        self._random = random.Random(0)

    def pick(self, request: Request, up: Sequence[int]) -> int:
        return self._random.choice(up)


class SentBlocks:
    """Which replica was sent which KV blocks, by name; of each replica the least recently sent are dropped beyond `capacity`."""

    def __init__(self, replicas: int, capacity: int) -> None:
        self._capacity = capacity
        self._sent: list[OrderedDict[Hashable, None]] = [OrderedDict() for _ in range(replicas)]
        self._holders: dict[Hashable, int] = {}  # a bit for each replica that has the block

    def known(self, names: Sequence[Hashable]) -> list[int]:
        """Of each replica, how many of the first of these blocks it was sent."""
        counts = [0] * len(self._sent)
        holding = (1 << len(counts)) - 1
        for depth, name in enumerate(names):
            still = holding & self._holders.get(name, 0)
            if still != holding:
                for index in _bits(holding ^ still):
                    counts[index] = depth
                holding = still
                if not still:
                    break
        for index in _bits(holding):
            counts[index] = len(names)
        return counts

    def send(self, names: Sequence[Hashable], replica: int) -> None:
        """These blocks are sent to a replica."""
        sent, holders, bit = self._sent[replica], self._holders, 1 << replica
        for name in names:
            if name in sent:
                sent.move_to_end(name)
            else:
                sent[name] = None
                holders[name] = holders.get(name, 0) | bit
        while len(sent) > self._capacity:
            name, _ = sent.popitem(last=False)
            holders[name] ^= bit
            if not holders[name]:
                del holders[name]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(slots=True)
class Load:
    """One replica as its router knows it: requests in flight, their uncached prompt tokens without a first token, and their prompts."""

    requests: int = 0
    pending_prefill_tokens: int = 0
    ongoing_tokens: int = 0


Choice = Callable[[Sequence[Load], Sequence[int], Sequence[int]], int]
"""Place of the chosen replica, from their loads, the prompt's first blocks known to each, and its tokens new to each."""


class LoadRouter:
    """Routes by a choice over the replicas' loads, which it keeps."""

    def __init__(self, choose: Choice, replicas: int, block_size: int, capacity: int) -> None:
        self._loads = [Load() for _ in range(replicas)]
        self._blocks = SentBlocks(replicas, capacity)
        self._block_size = block_size
        self._choose = choose
        self._pending: dict[Request, int] = {}  # new tokens of requests without a first token

    def pick(self, request: Request, up: Sequence[int]) -> int:
        """Choose, then reserve at once, so that the next choice already sees this request."""
        loads, known, size = self._loads, self._blocks.known(request.prompt_hashes), self._block_size
        if len(up) < len(loads):
            loads, known = [loads[i] for i in up], [known[i] for i in up]
        new = [max(1, request.prompt_tokens - blocks * size) for blocks in known]  # at least one has to be computed
        place = self._choose(loads, known, new)
        load = loads[place]
        self._pending[request] = new[place]
        load.requests += 1
        load.pending_prefill_tokens += new[place]
        load.ongoing_tokens += request.prompt_tokens
        self._blocks.send(request.prompt_hashes, up[place])
        return up[place]

    def first_token(self, request: Request, replica: int) -> None:
        self._loads[replica].pending_prefill_tokens -= self._pending.pop(request, 0)

    def finished(self, request: Request, replica: int) -> None:
        self.first_token(request, replica)  # where it had none
        load = self._loads[replica]
        load.requests -= 1
        load.ongoing_tokens -= request.prompt_tokens


def least_requests(loads: Sequence[Load], known: Sequence[int], new: Sequence[int]) -> int:
    """Fewest requests in flight."""
    counts = [load.requests for load in loads]
    return counts.index(min(counts))


def prefix_affinity(loads: Sequence[Load], known: Sequence[int], new: Sequence[int]) -> int:
    """The longest known prefix, while its replica has at most OVERLOAD_FACTOR times the mean in flight; else the least loaded."""
    most = max(known)
    best = known.index(most)
    mean = sum(load.requests for load in loads) / len(loads)
    if most and loads[best].requests <= max(OVERLOAD_FACTOR * mean, 1.0):
        return best
    return least_requests(loads, known, new)


def lmetric(loads: Sequence[Load], known: Sequence[int], new: Sequence[int]) -> int:
    """Least work ahead, weighted by how many share it."""
    scores = [
        (load.pending_prefill_tokens + tokens + DECODE_WEIGHT * load.ongoing_tokens) * (load.requests or 1)
        for load, tokens in zip(loads, new, strict=True)
    ]
    return scores.index(min(scores))


ROUTERS: dict[str, Callable[[int, int, int], Router]] = {
    "round-robin": RoundRobin,
    "random": Random,
    "least-requests": partial(LoadRouter, least_requests),
    "prefix-affinity": partial(LoadRouter, prefix_affinity),
    "lmetric": partial(LoadRouter, lmetric),
}


def make_router(name: str, replicas: int, block_size: int, capacity: int) -> Router:
    """A fresh router over `replicas`, each remembered for `capacity` blocks. Raises UsageError for an unknown name."""
    if name not in ROUTERS:
        raise UsageError(f"unknown router {name!r}; known: {', '.join(ROUTERS)}")
    return ROUTERS[name](replicas, block_size, capacity)
