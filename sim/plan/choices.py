"""Choices of a capacity plan: a deployment, or pools of them, of which the number is open."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sim.planned import Study


@dataclass(frozen=True, slots=True)
class Choice:
    """Any number of one unit: a replica, or some replicas of each of several pools.

    `price` is USD per hour of a unit of `gpus` GPUs; `kept` is that of `kept_gpus` more, which stand by in case that replicas are lost.
    """

    name: str
    study: Study
    price: float
    gpus: int = 1
    kept: float = 0.0
    kept_gpus: int = 0

    def study_of(self, count: int) -> Study:
        """The study of so many units."""
        study = self.study
        if study.fleet is None:
            return replace(study, deployment=replace(study.deployment, replicas=count))
        pools = tuple(
            replace(pool, deployment=replace(pool.deployment, replicas=pool.deployment.replicas * count)) for pool in study.fleet.pools
        )
        return replace(study, deployment=pools[0].deployment, fleet=replace(study.fleet, pools=pools))

    def cost(self, count: int) -> float:
        """USD per hour of so many units and of what stands by."""
        return count * self.price + self.kept

    def gpus_of(self, count: int) -> int:
        """GPUs of so many units and of what stands by."""
        return count * self.gpus + self.kept_gpus
