"""The highest request rate that a deployment sustains: at which it meets the SLO with a chance of 0.95, and how exactly that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb

from sim.results.chance import CERTAINTY, ERROR
from sim.workload.workload import Workload

TRIALS = 60  # the fewest whose lowest rate lies below the 5 % quantile with a chance of 0.95
LOWEST = 8  # of which the quantile and its interval are read


@dataclass(frozen=True, slots=True)
class Sustained:
    """Requests per second, with its interval, over the rate asked for."""

    per_s: float
    low: float
    high: float
    offered_per_s: float

    def at_least(self, per_s: float) -> Sustained:
        """The same where `per_s` is known to be sustained."""
        return replace(self, per_s=max(self.per_s, per_s), low=max(self.low, per_s), high=max(self.high, per_s))


def offered_rate(workload: Workload) -> float | None:
    """Requests per second of an open load; None where clients wait for their answers, or all come at once."""
    if workload.max_concurrency is not None:
        return None
    offered = workload.origin.get("request_rate")
    return workload.trace.offered_rate_per_s if offered is None else float(offered)


def sustained(factors: Sequence[float], offered_per_s: float) -> Sustained:
    """The rate that trials sustain, of how many times the rate asked for each does: their 5 % quantile and its interval."""
    ordered, share = sorted(factors), 1.0 - CERTAINTY
    n = len(ordered)
    # P(the k-th lowest lies below the quantile) = P(at least k of n do)
    below = [sum(comb(n, j) * share**j * (1 - share) ** (n - j) for j in range(k)) for k in range(n + 1)]
    low = max((k for k in range(1, n + 1) if below[k] <= ERROR), default=1)
    high = min((k for k in range(1, n + 1) if 1.0 - below[k] <= ERROR), default=n)
    rank = max(int(share * n), 1)
    per_s, least, most = (offered_per_s * ordered[k - 1] for k in (rank, low, min(high + 1, n)))
    return Sustained(per_s, least, most, offered_per_s)
