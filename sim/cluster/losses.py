"""Losses of replicas that their provider takes back, each replaced after a cold start.

A replica's losses are a Poisson process while it is up. It is told ahead: it takes no more requests, and finishes those that it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.cluster.replica import Change


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one replica: how many per hour while it is up, and seconds until another is up in its place."""

    per_hour: float
    down_s: float

    def changes(self, replica: int, until_s: float, seed: Sequence[int]) -> list[Change]:
        """Losses and returns of a replica up to a time; equal seeds draw the same for it, however many others there are."""
        rng, now, found = np.random.default_rng([*seed, replica]), 0.0, list[Change]()
        while (now := now + float(rng.exponential(3600.0 / self.per_hour))) < until_s:
            found += [Change(now, replica, "drain"), Change(now + self.down_s, replica, "start")]
            now += self.down_s
        return found


def changes_of(lost: Mapping[int, Losses], until_s: float, seed: Sequence[int]) -> tuple[Change, ...]:
    """Losses and returns of the replicas that have some, in order of time."""
    return tuple(sorted((each for i, one in lost.items() for each in one.changes(i, until_s, seed)), key=lambda change: change.at_s))
