"""Routing policies: which replica, from what a router knows of each. A policy is an entry of POLICIES; its fields are its options.

    LeastRequests    fewest requests in flight
    PowerOfTwo       of two replicas drawn at random, the one with fewer requests in flight; the first drawn of equals
    PendingTokens    fewest uncached prompt tokens in flight without a first token; of equals, fewest requests
    PrefixAffinity   where most of the prompt's prefix was sent before, unless that replica has more than `overload_factor` times the mean
                     in flight; then fewest requests
    LMetric          least (pending_prefill + new_uncached + decode_weight * ongoing_decode) * max(num_requests, 1), in tokens but the last
    Unified          prefix affinity likewise, else LMetric

Ties are broken at random, with the first of the two `draws` of a pick where most is known, and the second where least is to do: as deployed
routers do, and as equal replicas get equal shares. Formulas and weights: package data reference/routing, scoring_formulas.csv and
workload_setup.csv. Its B' is LMetric here; B, with the error that an idle replica scores nought whatever the prompt, is
`idle_scores_zero`; the original is that with `decode_weight` 0. What it calls ongoing tokens are the prompts of the requests in flight, as
its race fix adds them. Its counter of recent migrations is left out: no request migrates here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

OVERLOAD_FACTOR = 1.3
DECODE_WEIGHT = 0.01
AFFINITY, FALLBACK = "affinity", "fallback"
DRAW_BITS = 32
FIRST = (0, 0)  # draws by which the first of equals is chosen


@dataclass(slots=True)
class Load:
    """One replica as its router knows it: requests in flight, their uncached prompt tokens without a first token, and their prompts."""

    requests: int = 0
    pending_prefill_tokens: int = 0
    ongoing_tokens: int = 0


Draws = Sequence[int]  # two of DRAW_BITS random bits each, new ones for each pick
Choice = Callable[[Sequence[Load], Sequence[int], Sequence[int], Draws], int]
"""Place of the chosen replica, from their loads, the prompt's first blocks known to each, its tokens new to each, and draws for ties.

In `decision` it names the way in which its latest choice was made.
"""


@dataclass(frozen=True, kw_only=True)
class LeastRequests:
    decision = "least-requests"

    def __call__(self, loads: Sequence[Load], known: Sequence[int], new: Sequence[int], draws: Draws = FIRST) -> int:
        return _least([load.requests for load in loads], draws[1])


class PowerOfTwo:
    decision = "power-of-two"

    def __init__(self, *, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def __call__(self, loads: Sequence[Load], known: Sequence[int], new: Sequence[int], draws: Draws = FIRST) -> int:
        first, second = self.draw(len(loads))
        # no fixed tie-break: it would send idle replicas unequal shares
        return second if loads[second].requests < loads[first].requests else first

    def draw(self, replicas: int) -> tuple[int, int]:
        """Two replicas, the same where there is one alone."""
        first = self._random.randrange(replicas)
        if replicas == 1:
            return first, first
        second = self._random.randrange(replicas - 1)
        return first, second + (second >= first)


@dataclass(frozen=True, kw_only=True)
class PendingTokens:
    decision = "join-shortest-pending-tokens"

    def __call__(self, loads: Sequence[Load], known: Sequence[int], new: Sequence[int], draws: Draws = FIRST) -> int:
        # without the second part, all that decode would gather on the first of the replicas that prefill nothing
        return _least([(load.pending_prefill_tokens, load.requests) for load in loads], draws[1])


@dataclass(kw_only=True)
class PrefixAffinity:
    overload_factor: float = OVERLOAD_FACTOR
    decision: str = field(default=AFFINITY, init=False)

    def __call__(self, loads: Sequence[Load], known: Sequence[int], new: Sequence[int], draws: Draws = FIRST) -> int:
        most = max(known)
        best = one_of(known, most, draws[0])
        if most and loads[best].requests <= max(self.overload_factor * mean_requests(loads), 1.0):
            self.decision = AFFINITY
            return best
        self.decision = FALLBACK
        return _least([load.requests for load in loads], draws[1])


@dataclass(kw_only=True)
class LMetric:
    decision = "lmetric"
    decode_weight: float = DECODE_WEIGHT
    idle_scores_zero: bool = False

    def __call__(self, loads: Sequence[Load], known: Sequence[int], new: Sequence[int], draws: Draws = FIRST) -> int:
        return _least(self.scores(loads, new), draws[1])

    def scores(self, loads: Sequence[Load], new: Sequence[int]) -> list[float]:
        """Of each replica, the work ahead, weighted by how many share it."""
        weight, least = self.decode_weight, 0 if self.idle_scores_zero else 1
        return [
            (load.pending_prefill_tokens + tokens + weight * load.ongoing_tokens) * (load.requests or least)
            for load, tokens in zip(loads, new, strict=True)
        ]


@dataclass(kw_only=True)
class Unified(LMetric):
    overload_factor: float = OVERLOAD_FACTOR
    decision: str = field(default=AFFINITY, init=False)

    def __call__(self, loads: Sequence[Load], known: Sequence[int], new: Sequence[int], draws: Draws = FIRST) -> int:
        most = max(known)
        best = one_of(known, most, draws[0])
        if most and loads[best].requests <= self.overload_factor * mean_requests(loads):
            self.decision = AFFINITY
            return best
        self.decision = FALLBACK
        return LMetric.__call__(self, loads, known, new, draws)


POLICIES: dict[str, Callable[..., Choice]] = {
    "least-requests": LeastRequests,
    "power-of-two": PowerOfTwo,
    "join-shortest-pending-tokens": PendingTokens,
    "prefix-affinity": PrefixAffinity,
    "lmetric": LMetric,
    "unified": Unified,
}


def drawn(seed: int, count: int) -> NDArray[np.int64]:
    """[count, 2] draws for ties, of the first picks of a router with this seed."""
    return np.random.default_rng(seed).integers(1 << DRAW_BITS, size=(count, 2))


def draws_of(seed: int) -> Iterator[Draws]:
    """The same, pick by pick."""
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.integers(1 << DRAW_BITS, size=(256, 2)).tolist()


def one_of(values: Sequence[object], wanted: object, draw: int) -> int:
    """Place of one of the values that are `wanted`, each as likely as the others."""
    tied = [place for place, value in enumerate(values) if value == wanted]
    return tied[draw * len(tied) >> DRAW_BITS]


def _least(scores: Sequence[Any], draw: int) -> int:
    return one_of(scores, min(scores), draw)


def mean_requests(loads: Sequence[Load]) -> float:
    """Requests in flight of a replica, in the mean."""
    return sum(load.requests for load in loads) / len(loads)


def weighted_scores(
    weights: tuple[float, float, float], waiting: Sequence[int], used: Sequence[float], known: Sequence[float]
) -> list[float]:
    """Scorers of the Kubernetes Gateway API inference extension, summed by `weights` (queue, kv, prefix), of each replica: 1 for the fewest
    of `waiting` down to 0 for the most; the share of KV that is not `used`; the share of the prompt that is `known` there.
    """
    queue, kv, prefix = weights
    most, least = max(waiting), min(waiting)
    return [
        queue * ((most - waits) / (most - least) if most > least else 1.0) + kv * max(1.0 - share, 0.0) + prefix * min(there, 1.0)
        for waits, share, there in zip(waiting, used, known, strict=True)
    ]
