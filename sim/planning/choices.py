"""Choices of a capacity plan: a deployment, or pools of them, of which the number is open."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from sim.cluster.losses import Losses
from sim.cluster.pools import DECODE, PREFILL
from sim.errors import UsageError
from sim.planning.spot import SHARES, Spot
from sim.study.fleet_spec import Fleet, PoolSpec
from sim.study.studied import Study

RATIOS = ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1))  # replicas of two pools in a unit
SHORT_SHARES = (0.5, 0.75, 0.9)  # of the prompts: where a split by length is tried
KINDS = ONE, PREFILL_DECODE, SPLIT = "one", "prefill-decode", "split"


@dataclass(frozen=True, slots=True)
class Part:
    """Equal replicas within a unit, each `price` USD per hour on `gpus` GPUs; one loss takes `lost` replicas at most."""

    replicas: int
    price: float
    gpus: int
    lost: int = 0
    node: int = 8  # GPUs of a node
    watts: float = 0.0  # power limit of all of them
    losses: Losses | None = None  # of each, where they are spot capacity
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """Any number of one unit: a replica, or some replicas of each of several pools. What a loss can take stands by beside them."""

    name: str
    study: Study
    parts: tuple[Part, ...]
    most_kw: float = math.inf  # of the power limits of all GPUs
    stock: Mapping[str, int] = field(default_factory=dict)  # GPUs that there are, by name; empty: as many as one likes

    @property
    def routed(self) -> list[str]:
        """How the requests of each pool are routed."""
        pools = self.study.whole_fleet.pools
        return [f"{pool.deployment.router} {pool.deployment.router_options}" for pool in pools]

    def study_of(self, count: int) -> Study:
        """The study of so many units, none standing by."""
        return self.study.resized([count * pool.deployment.replicas for pool in self.study.whole_fleet.pools])

    def lost(self, count: int) -> dict[int, Losses]:
        """Losses of the replicas, by their numbers, that may be taken away."""
        each = [part.losses for part in self.parts for _ in range(count * part.replicas)]
        return {replica: losses for replica, losses in enumerate(each) if losses}

    def replicas(self, count: int) -> list[int]:
        """Replicas of each part for so many units, those that stand by included."""
        return [count * part.replicas + min(count * part.replicas, part.lost) for part in self.parts]

    def cost(self, count: int) -> float:
        """USD per hour of so many units and of what stands by."""
        return sum(n * part.price for n, part in zip(self.replicas(count), self.parts, strict=True))

    def gpus_of(self, count: int) -> int:
        """GPUs of so many units and of what stands by."""
        return sum(n * part.gpus for n, part in zip(self.replicas(count), self.parts, strict=True))

    def gpus_by_name(self, count: int) -> Counter[str]:
        """The same, by their names."""
        found = Counter[str]()
        for n, part in zip(self.replicas(count), self.parts, strict=True):
            found[part.gpu] += n * part.gpus
        return found

    def short_of(self, count: int, gpus: float) -> str:
        """What so many units lack where there are so many GPUs, power and a stock; nothing where there is enough."""
        if self.kw_of(count) > self.most_kw:
            return f"{self.most_kw:g} kW"
        if self.gpus_of(count) > gpus:
            return f"{gpus} GPUs"
        wanted = self.gpus_by_name(count) if self.stock else Counter()
        return next((f"the {self.stock.get(gpu, 0)} {gpu} of the inventory" for gpu, n in wanted.items() if n > self.stock.get(gpu, 0)), "")

    def kw_of(self, count: int) -> float:
        """Power limits of all GPUs of so many units and of what stands by."""
        return sum(n * part.watts for n, part in zip(self.replicas(count), self.parts, strict=True)) / 1e3

    def nodes_of(self, count: int) -> int:
        """Nodes for so many units: no replica lies on two that fits on one, large ones find their place first. Nodes have one size."""
        room: list[int] = []
        nodes = 0
        sizes = [(part.gpus, part.node) for n, part in zip(self.replicas(count), self.parts, strict=True) for _ in range(n)]
        for gpus, node in sorted(sizes, reverse=True):
            whole, rest = divmod(gpus, node)
            nodes += whole
            place = next((i for i, free in enumerate(room) if free >= rest), None) if rest else 0
            if place is None:
                nodes += 1
                room.append(node - rest)
            elif rest:
                room[place] -= rest
                if not room[place]:
                    del room[place]
        return nodes

    def spares(self, count: int) -> int:
        """Replicas that stand by."""
        return sum(self.replicas(count)) - count * sum(part.replicas for part in self.parts)

    def most(self, gpus: int) -> int:
        """The most units on so many GPUs, within the power and the stock that there are."""
        count = gpus // sum(part.replicas * part.gpus for part in self.parts)
        while count and self.short_of(count, gpus):
            count -= 1
        return count


def on_spot(single: Choice, spot: Spot) -> list[Choice]:
    """A single deployment on spot capacity, and on both: SHARES of its replicas are lasting."""
    d, lasting = single.study.deployment, single.parts[0]
    part = replace(lasting, price=spot.usd_per_hour * d.gpus, losses=spot.losses(d))
    both = [
        Choice(
            f"{a} lasting and {b} on spot of {single.name}",
            single.study.resized([a + b]),
            (replace(lasting, replicas=a), replace(part, replicas=b, lost=0)),
        )
        for a, b in SHARES
    ]
    return [Choice(f"{single.name} on spot", single.study, (part,)), *both]


def pooled(singles: Sequence[Choice], kind: str) -> list[Choice]:
    """Two pools of single deployments, on equal or on different GPUs: prefill apart from decode, or short prompts from long ones.

    A unit has some replicas of each: RATIOS, or the ratio that `kind` ends with, as in prefill-decode:3x2. Prefill and decode share model,
    dtypes and attention.
    """
    found = []
    kind, ratios = _ratios(kind)
    for first, second, ratio in product(singles, singles, ratios):
        if kind == PREFILL_DECODE:
            a, b = first.study.deployment, second.study.deployment
            if (a.model, a.precision, a.limits.attention) == (b.model, b.precision, b.limits.attention):
                found.append(_pair(first, second, ratio, (PREFILL, DECODE), None))
        else:
            found += [_pair(first, second, ratio, ("serve", "serve"), longest) for longest in _thresholds(first.study)]
    return found


def _thresholds(study: Study) -> list[int]:
    """Prompt lengths, in round numbers, below which these shares of the prompts lie."""
    prompts = study.workload.trace.prompt_tokens
    lengths = {int(float(f"{np.quantile(prompts, share):.2g}")) for share in SHORT_SHARES}
    return sorted(length for length in lengths if prompts.min() <= length < prompts.max())


def _pair(first: Choice, second: Choice, ratio: tuple[int, int], roles: tuple[str, str], longest: int | None) -> Choice:
    what = (PREFILL, DECODE) if longest is None else (f"to {longest} tokens", "longer")
    places = [each.name if n == 1 else f"{n} replicas of {each.name}" for n, each in zip(ratio, (first, second), strict=True)]
    name = f"{what[0]} on {places[0]}, {what[1]} on {places[1]}"
    names = (PREFILL, DECODE) if longest is None else ("short", "long")
    pools = tuple(
        PoolSpec(replace(each.study.deployment, replicas=n), name=called, role=role, max_prompt_tokens=most)
        for n, each, called, role, most in zip(ratio, (first, second), names, roles, (longest, None), strict=True)
    )
    study = replace(first.study, deployment=pools[0].deployment, fleet=Fleet(pools), others=((second.study.rates, second.study.host),))
    parts = tuple(replace(each.parts[0], replicas=n) for n, each in zip(ratio, (first, second), strict=True))
    return Choice(name, study, parts)


def check_kinds(kinds: Sequence[str]) -> None:
    """Raises UsageError for a kind of pools that there is not."""
    for kind in kinds:
        name, ratios = _ratios(kind)
        if name not in KINDS or not ratios or (name == ONE) != (kind == ONE):
            raise UsageError(f"--pools: no {kind!r}; there are {', '.join(KINDS)}, and ratios of two pools as in {PREFILL_DECODE}:3x2")


def _ratios(kind: str) -> tuple[str, Sequence[tuple[int, int]]]:
    """Kind of pools, and the replicas of each in a unit; none where a ratio cannot be."""
    name, colon, ratio = kind.partition(":")
    first, _, second = ratio.partition("x")
    if not colon:
        return name, RATIOS
    whole = first.isdecimal() and second.isdecimal() and min(int(first), int(second)) > 0
    return name, ((int(first), int(second)),) if whole else ()
