"""Autoscaling: how many replicas of a pool are up, from a signal and its target.

Every `period_s` the pool wants ceil(replicas * signal / target) replicas, as Kubernetes' horizontal autoscaler does. More are ordered at
once and are up `cold_start_s` later. Fewer are kept only after nothing more was wanted for `down_after_s`; the highest numbers drain.

    requests    requests in flight per replica
    prompts     prompt tokens in flight per replica
    ttft        90th percentile of the TTFT of the last period, seconds
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.cluster.clock import CLIENTS, Clock
from sim.cluster.replica import Replica, State
from sim.cluster.running_fleet import RunningFleet
from sim.errors import SimctlError, UsageError
from sim.ticks import ARRIVAL, to_ticks

SHORTEST_S = 1e-3  # between two looks: with less, time stands still
MOST_QUIET = 100_000  # looks in a row between which nothing happens
SIGNALS = ("requests", "prompts", "ttft")


@dataclass(frozen=True, slots=True)
class Scaling:
    """Autoscaling of one pool (by its place among them); it never has fewer than `least` replicas, nor more than it has engines."""

    pool: int = 0
    signal: str = SIGNALS[0]
    target: float = 8.0
    least: int = 1
    period_s: float = 15.0
    cold_start_s: float = 60.0
    down_after_s: float = 300.0

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            raise UsageError(f"an autoscaler's signal is {', '.join(SIGNALS)}, not {self.signal!r}")
        if not (self.target > 0 and self.period_s > 0 and self.least >= 1 and min(self.cold_start_s, self.down_after_s) >= 0):
            raise UsageError("an autoscaler needs a target and a period above 0, at least one replica, and no negative time")
        if self.period_s < SHORTEST_S:
            raise UsageError(f"an autoscaler's period must be at least {SHORTEST_S:g} s, not {self.period_s:g}")


class Autoscaler:
    """Applies the scalings to a fleet while anything else happens in it."""

    def __init__(self, clock: Clock, fleet: RunningFleet, scalings: Sequence[Scaling]) -> None:
        self._clock = clock
        self._fleet = fleet
        self._scalings = scalings
        self._coming: list[set[Replica]] = [set() for _ in scalings]
        self._still = 0  # looks in a row at a fleet in which nothing else is to happen
        self._looks = self._others = self._quiet = 0  # looks called, other events called, looks in a row without such
        self._wanted: list[deque[tuple[int, int]]] = [deque() for _ in scalings]  # (ticks, replicas) of the last `down_after_s`

    def begin(self) -> None:
        """Look once every period."""
        for place, scaling in enumerate(self._scalings):
            if scaling.signal == "ttft":
                self._fleet.pools[scaling.pool].ttfts = deque()
            self._call(place, scaling)

    def _call(self, place: int, scaling: Scaling) -> None:
        self._looks += 1
        self._clock.call(self._clock.now + to_ticks(scaling.period_s), ARRIVAL, CLIENTS, self._look, place, scaling)

    def _look(self, place: int, scaling: Scaling) -> None:
        others = self._clock.called() - self._looks
        self._quiet, self._others = self._quiet + 1 if others == self._others else 0, others
        if self._quiet > MOST_QUIET:
            seen = f"{MOST_QUIET:,} looks of an autoscaler, one every {scaling.period_s:g} s"
            raise SimctlError(f"nothing happens in {seen}: what it waits for is too far away for its period")
        self._scale(place, scaling)
        # where only looks are to come, and none of them orders anything, nothing will ever happen: the run ends and says so
        unscaled = self._clock.pending() < len(self._scalings) and not any(self._coming)
        self._still = self._still + 1 if unscaled else 0
        if self._fleet.busy() and self._still <= 2 * len(self._scalings):
            self._call(place, scaling)

    def _scale(self, place: int, scaling: Scaling) -> None:
        replicas = self._fleet.pools[scaling.pool].replicas
        up = [each for each in replicas if each.state is State.UP]
        have = len(up) + len(self._coming[place])
        wanted = max(scaling.least, min(math.ceil(self._load(scaling) * max(len(up), 1) / scaling.target - 1e-9), len(replicas)))
        past, now = self._wanted[place], self._clock.now
        past.append((now, wanted))
        while past[0][0] < now - to_ticks(scaling.down_after_s):
            past.popleft()
        if wanted > have:
            down = [each for each in replicas if each.state is not State.UP and each not in self._coming[place]]
            for replica in down[: wanted - have]:
                self._coming[place].add(replica)
                self._fleet.order(replica)
                self._clock.call(now + to_ticks(scaling.cold_start_s), ARRIVAL, CLIENTS, self._start, place, replica)
        elif (keep := max(most for _, most in past)) < len(up):
            for replica in reversed(up[keep:]):
                self._fleet.drain(replica)

    def _start(self, place: int, replica: Replica) -> None:
        self._coming[place].discard(replica)
        if replica.state is not State.UP:
            self._fleet.start(replica)

    def _load(self, scaling: Scaling) -> float:
        """The signal per replica that is up."""
        running = self._fleet.pools[scaling.pool]
        if running.ttfts is None:
            return self._fleet.in_flight(scaling.pool, scaling.signal == "prompts") / max(len(running.up), 1)
        while running.ttfts and running.ttfts[0][0] <= self._clock.now - to_ticks(scaling.period_s):
            running.ttfts.popleft()
        return float(np.percentile([seconds for _, seconds in running.ttfts], 90)) if running.ttfts else 0.0
