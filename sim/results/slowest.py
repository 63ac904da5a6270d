"""Where the slowest first tokens of a run come from: requests of a few seconds, as of the burst that many loads begin with, or of all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.quantiles import quantiles
from sim.results.record import RunRecord

SHARE = 0.99
LOCAL = 0.1  # of the time in which requests come: slow requests within so much of it are of a burst
LEAST = 100  # requests: of fewer the 99th percentile is one of them
APART = 1.5  # p99 over what is near it, and over the others' p99 from which a burst is worth a word


@dataclass(frozen=True, slots=True)
class Burst:
    """Seconds between which the requests came whose TTFT is near the 99th percentile, `p99_ms`, or above, how many came then, and the 99th
    percentile of the others.
    """

    from_s: float
    to_s: float
    requests: int
    p99_ms: float
    others_p99_ms: float


def burst_of(record: RunRecord) -> Burst | None:
    """The burst that the p99 of TTFT is of; None where its requests came all through the run, or the others' p99 is not much less."""
    arrival, first = (np.asarray(record.requests[name], dtype=float) for name in ("arrival_s", "first_token_s"))
    there = np.isfinite(first) & np.isfinite(arrival)
    if there.sum() < LEAST:
        return None
    came, ttft = arrival[there], 1e3 * (first - arrival)[there]
    p99 = quantiles(ttft, (SHARE,))[0]
    slow = came[ttft >= p99 / APART]
    low, high, whole = float(slow.min()), float(slow.max()), float(came.max() - came.min())
    if high - low > LOCAL * whole:
        return None
    then = (came >= low) & (came <= high)
    others = quantiles(ttft[~then], (SHARE,))[0] if (~then).any() else p99
    return Burst(low, high, int(then.sum()), p99, others) if p99 > APART * others else None
