"""A day's traffic, hour by hour: units of one choice, each hour taken by itself at its mean rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.planning.choices import Choice
from sim.planning.highest_rate import sustained
from sim.workload.rate_curve import RateCurve

HOUR_S = 3600.0
MOST_COUNTS = 8  # counts whose highest rate is simulated; between them it is interpolated
TRIALS = 20


@dataclass(frozen=True, slots=True)
class Hour:
    """Requests per second of an hour, the units that sustain them, and the GPUs that perfect scaling would have up in the mean: at any
    moment as many, parts of one too, as the load needs of units at their most efficient count.
    """

    requests_per_s: float
    count: int
    gpus: int
    usd: float
    least_gpus: float


def hourly(curve: RateCurve) -> list[float]:
    """Mean rate of every hour, or part of one, of the curve's period."""
    ends = np.append(np.arange(0.0, curve.edges_s[-1], HOUR_S), curve.edges_s[-1])
    # the integral up to the very end of a period: `calls` has begun again there
    calls = np.append(curve.calls(ends[:-1]), curve.mean_per_s * curve.edges_s[-1])
    return [float(rate) for rate in np.diff(calls) / np.diff(ends)]


def hours_of(
    rates: Sequence[float], choice: Choice, most: int, offered_per_s: float, factors: Callable[[int, range], Sequence[float]]
) -> list[Hour]:
    """Units for every hour, `most` of which hold the busiest. `factors` of (count, trials) say how many times the asked rate each holds."""
    counts = sorted({int(n) for n in np.linspace(1, most, min(most, MOST_COUNTS)).round()})
    highest = [sustained(factors(count, range(TRIALS)), offered_per_s).per_s for count in counts]
    holds = np.maximum.accumulate(np.interp(np.arange(1, most + 1), counts, highest))
    best = max(float((holds / np.arange(1, most + 1)).max()), max(rates) / most)  # requests/s of a unit; the busiest hour is held
    gpus = sum(part.replicas * part.gpus for part in choice.parts)
    found = []
    for rate in rates:
        count = int(np.searchsorted(holds, rate)) + 1 if rate <= min(holds[-1], np.nextafter(max(rates), 0.0)) else most
        found.append(Hour(rate, count, choice.gpus_of(count), choice.cost(count), rate / best * gpus))
    return found
