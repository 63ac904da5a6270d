"""Prices of spot capacity: replicas that the provider takes back now and then."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sim.cluster.losses import Losses
from sim.deployment.memory import resident_weight_bytes
from sim.errors import UsageError
from sim.study.deployment import Deployment

MOST_LOSSES, MOST_S = 60, 86_400
SHARES = (1, 1), (2, 1)  # lasting and spot replicas of a unit that has both


@dataclass(frozen=True, slots=True)
class Spot:
    """Price of a GPU in USD per hour, losses of a replica per hour, and seconds until another is up beside those for weights. The share
    `lost_together` of the losses takes all at once; `notice_s` after it is told, a replica is gone.
    """

    usd_per_hour: float
    losses_per_hour: float
    cold_start_s: float
    disk_bytes_per_s: float = math.inf
    lost_together: float = 0.0
    notice_s: float = math.inf

    def __post_init__(self) -> None:
        if not (0 < self.losses_per_hour <= MOST_LOSSES and 0 <= self.cold_start_s <= MOST_S and self.disk_bytes_per_s > 0):
            raise UsageError(f"a replica is lost up to {MOST_LOSSES} times an hour, another up within {MOST_S} s, and disks have a speed")
        if not 0 <= self.lost_together <= 1 or self.notice_s < 0:
            raise UsageError(
                f"the share of losses that take all at once lies in 0..1, and a notice is 0 s or more, got {self.lost_together:g}"
            )

    def losses(self, d: Deployment) -> Losses:
        """Losses of a replica of this deployment."""
        down_s = self.cold_start_s + resident_weight_bytes(d.model, d.precision) / self.disk_bytes_per_s
        return Losses(self.losses_per_hour, down_s, self.lost_together, self.notice_s)
