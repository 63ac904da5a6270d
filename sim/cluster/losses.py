"""Losses of replicas that their provider takes back, each replaced after a cold start.

A replica's losses are a Poisson process while it is up. Some of them take all replicas of the same offer at once. It is told ahead: it
takes no more requests, and finishes those that it has, as far as the notice goes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.cluster.replica import Change

ALL = 2**31  # in the place of a replica's number, which is less


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one replica: how many per hour while it is up, and seconds until another is up in its place. `together` of them take all
    others with the same losses, too. `notice_s` after it is told, it is gone, and what it had is served elsewhere anew.
    """

    per_hour: float
    down_s: float
    together: float = 0.0
    notice_s: float = math.inf

    def changes(self, replica: int, until_s: float, seed: Sequence[int]) -> list[Change]:
        """Losses and returns of a replica up to a time; equal seeds draw the same for it, however many others there are."""
        rng, now, found = np.random.default_rng([*seed, replica]), 0.0, list[Change]()
        all_at_s, alone = self._of_all(until_s, seed), 1.0 - self.together
        while True:
            own_s = now + float(rng.exponential(3600.0 / (alone * self.per_hour))) if alone else math.inf
            now = min([own_s, *(at_s for at_s in all_at_s if at_s > now)])
            if now >= until_s:
                return found
            found.append(Change(now, replica, "drain"))
            if self.notice_s < self.down_s:
                found.append(Change(now + self.notice_s, replica, "fail"))
            found.append(Change(now + self.down_s, replica, "start"))
            now += self.down_s

    def _of_all(self, until_s: float, seed: Sequence[int]) -> list[float]:
        """When all replicas are lost at once."""
        if not self.together:
            return []
        rng, now, found = np.random.default_rng([*seed, ALL]), 0.0, list[float]()
        while (now := now + float(rng.exponential(3600.0 / (self.together * self.per_hour)))) < until_s:
            found.append(now)
        return found


def changes_of(lost: Mapping[int, Losses], until_s: float, seed: Sequence[int]) -> tuple[Change, ...]:
    """Losses and returns of the replicas that have some, in order of time."""
    return tuple(sorted((each for i, one in lost.items() for each in one.changes(i, until_s, seed)), key=lambda change: change.at_s))
