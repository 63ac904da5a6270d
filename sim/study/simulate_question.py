"""The question of a simulation: what serves what, at which rates, and what is asked of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sim.cost.rates import RateDraws
from sim.errors import UsageError
from sim.rates.kinds import kinds_of
from sim.rates.serving import HostRates
from sim.rates.source import RateSource, ahead
from sim.results.chance import STAGES
from sim.shown import Figures, Shown
from sim.study.deployment import Deployment, cap_at_knee
from sim.study.fleet_spec import Fleet
from sim.study.simulate import Run, fleet_study, run_study
from sim.study.strata import stratified, typical
from sim.study.studied import Progress, Study
from sim.workload.workload import Workload


@dataclass(frozen=True, slots=True, repr=False)
class Simulate(Shown):
    """A workload served on a deployment or a fleet.

    `goodput` maps ttft, tpot, e2el to milliseconds. `goal` is a figure and the bound that it shall be at most. `draws`,
    `keep_iterations` as in `run_study`.
    """

    deployment: Deployment | Fleet
    workload: Workload
    rates: RateSource = field(default_factory=RateSource)
    goodput: Mapping[str, float] = field(default_factory=dict)
    goal: tuple[str, float] | None = None
    draws: int | None = None
    keep_iterations: bool = True

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        goal = [] if self.goal is None else [("goal", f"{self.goal[0]} <= {self.goal[1]:g}")]
        return f"{self.deployment.shown()[0]}: {self.workload.shown()[0]}", [*self.workload.shown()[1], *goal]

    def __post_init__(self) -> None:
        if self.draws is not None and self.draws < 0:
            raise UsageError(f"draws cannot be {self.draws}")

    def study(self, known: dict[Any, tuple[RateDraws, HostRates]] | None = None) -> Study:
        """The study that answers it; `known` keeps rates over several questions. Raises what loading rates raises."""
        memo = {} if known is None else known
        count, tokens = max(STAGES[-1], self.draws or 0), typical(self.workload.trace)

        def rates_of(d: Deployment) -> tuple[RateDraws, HostRates]:
            engine = (d.limits.engine, d.limits.engine_version, ahead(d), *kinds_of(d))
            key = (d.model.name, d.gpu.name, d.precision, d.tp, d.parallel, d.topology, *engine)
            order = (*key, d.limits.attention.label, d.limits.lora, *tokens)
            if order not in memo:
                if key not in memo:
                    memo[key] = self.rates.of(d, count)
                rates, host = memo[key]
                memo[order] = stratified(rates, d, *tokens), host
            return memo[order]

        if isinstance(self.deployment, Fleet):
            return fleet_study(self.deployment, self.workload, rates_of, self.goodput)
        deployment = self.deployment
        rates, host = rates_of(deployment)
        if (tau := deployment.limits.batch_knee) is not None:
            cap = cap_at_knee(self.workload.trace, deployment, rates.point, tau)
            deployment = replace(deployment, limits=replace(deployment.limits, max_num_seqs=cap, batch_knee=None))
        return Study(deployment, self.workload, rates, host, self.goodput)

    def answer(self, on_progress: Progress | None = None) -> Run:
        """The run. Raises UsageError for a request that cannot fit or a goal of no figure, SimctlError when a model does not fit."""
        run = run_study(self.study(), draws=self.draws, keep_iterations=self.keep_iterations, on_progress=on_progress)
        return run if self.goal is None else replace(run, reached=run.goal(*self.goal, on_progress))


def simulate(
    deployment: Deployment | Fleet,
    workload: Workload,
    rates: RateDraws | None = None,
    *,
    host: HostRates | None = None,
    draws: int | None = None,
    seed: int = 0,
    goodput: Mapping[str, float] | None = None,
    keep_iterations: bool = True,
    on_progress: Progress | None = None,
) -> Run:
    """The answer of Simulate. `rates` and `host`: the `known` and `host` of its RateSource, for a deployment alone; `seed` its seed."""
    if isinstance(deployment, Fleet) and (rates is not None or host is not None):
        raise UsageError("the rates of a fleet's pools are loaded for each of them")
    source = RateSource(known=rates, host=host, seed=seed)
    return Simulate(deployment, workload, source, goodput or {}, None, draws, keep_iterations).answer(on_progress)
