"""A study: a workload on a deployment or fleet at given rates, and its pools as planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from sim.cost.rates import RateDraws, Rates
from sim.engine.config import EngineConfig
from sim.engine.iteration_cost import IterationCost
from sim.engine.registry import step_settings
from sim.engine.step_clock import StepTime
from sim.errors import UsageError
from sim.rates.serving import HostRates
from sim.results.power import PoweredServer
from sim.shown import Figures, Shown
from sim.specs.attention_policy import AttentionPolicy
from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec
from sim.specs.precision import Precision
from sim.study.deployment import Deployment
from sim.study.fleet_spec import Fleet, PoolSpec, fleet_of_one
from sim.workload.workload import Workload

COSTS = 128  # sets of prices that are kept
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, repr=False)
class Study(Shown):
    """Everything that a run needs: equal studies give equal results.

    `fleet` None is the deployment alone; else the deployment, its rates and its host are those of the fleet's first pool, and `others` are
    rates and host of the pools after it.
    """

    deployment: Deployment
    workload: Workload
    rates: RateDraws
    host: HostRates = field(default_factory=HostRates)
    goodput: Mapping[str, float] = field(default_factory=dict)
    fleet: Fleet | None = None
    others: Sequence[tuple[RateDraws, HostRates]] = ()

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        return f"{self.whole_fleet.pools[0].deployment.shown()[0]}: {self.workload.shown()[0]}", self.workload.shown()[1]

    def __post_init__(self) -> None:
        if self.fleet and (len(self.others) != len(self.fleet.pools) - 1 or self.fleet.pools[0].deployment != self.deployment):
            raise UsageError("a study of a fleet needs the rates of every pool, and the first pool's deployment")

    @property
    def whole_fleet(self) -> Fleet:
        """The fleet, also of a deployment alone."""
        return self.fleet or fleet_of_one(self.deployment)

    def resized(self, replicas: Sequence[int]) -> Study:
        """The same with so many replicas in each pool."""
        pools = tuple(
            replace(pool, deployment=replace(pool.deployment, replicas=n)) for pool, n in zip(self.whole_fleet.pools, replicas, strict=True)
        )
        fleet = self.fleet and replace(self.fleet, pools=pools)
        return replace(self, deployment=pools[0].deployment, fleet=fleet)

    @property
    def sources(self) -> list[tuple[RateDraws, HostRates]]:
        """Rates and host of every pool."""
        return [(self.rates, self.host), *self.others]

    @property
    def servers(self) -> list[PoweredServer]:
        """GPUs of each replica, those of a pool side by side."""
        pools = [(pool.deployment, pool.most) for pool in self.whole_fleet.pools]
        return [PoweredServer(d.model, d.precision, d.gpu, d.tp, d.parallel) for d, most in pools for _ in range(most)]


@dataclass(frozen=True, slots=True, repr=False)
class PlannedPool(Shown):
    """A pool of a study: what it is, its engines' configuration, its rates and host."""

    spec: PoolSpec
    config: EngineConfig
    rates: RateDraws
    host: HostRates

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        return self.spec.deployment.shown()

    def cost(self, draw: int | None) -> IterationCost:
        """Prices iterations at a draw of the rates, or at their medians."""
        d, rates = self.spec.deployment, self.rates_at(draw)
        settings = step_settings(self.config, self.host.work) | {
            "parallel": d.parallel,
            "eager": d.limits.enforce_eager,
            "lora": d.limits.lora,
        }
        settings["part_tokens"] = self.config.max_num_batched_tokens // d.parallel.parts
        known = d.model, d.precision, rates, d.tp, d.limits.attention, d.limits.draft, d.gpu, _frozen(settings)
        try:
            hash(known)
        except TypeError:  # a part of somebody's own
            return _cost.__wrapped__(*known)
        return _cost(*known)

    def at(self, draw: int | None) -> PlannedPool:
        """The pool with the host of a draw."""
        works = self.rates.host_work
        if draw is None or works is None:
            return self
        return replace(self, host=self.host.slower(float(works[draw % self.rates.count])))

    def rates_at(self, draw: int | None) -> Rates:
        """A draw of the rates, or their medians."""
        return self.rates.point if draw is None else self.rates.draws.at(draw % self.rates.count)


def _frozen(settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in settings.items())


@lru_cache(maxsize=COSTS)
def _cost(
    model: ModelSpec,
    precision: Precision,
    rates: Rates,
    tp: int,
    policy: AttentionPolicy,
    draft: ModelSpec | None,
    gpu: GpuSpec,
    settings: tuple[tuple[str, Any], ...],
) -> IterationCost:
    """Prices, kept: trials of a plan ask for those of one draw again, under other batch caps and counts."""
    drafting = StepTime(draft, precision, rates, tp=tp, gpu=gpu) if draft else None
    return IterationCost(model, precision, rates, tp=tp, policy=policy, draft=drafting, gpu=gpu, **dict(settings))
