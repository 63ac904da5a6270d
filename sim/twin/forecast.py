"""Growth of a load and when it breaks an SLO: a straight line through counts of arrivals, and the chance over line and server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.slo import Condition
from sim.twin.curve import LatencyCurve
from sim.twin.level import Level

Floats = NDArray[np.float64]
HALF_LIFE_S = 300.0
SOON_S = 1020.0  # a break later than this is not warned of yet; chosen on ramps and calm loads that no test scores
DRAWS = 2000
SAFE = 0.1  # chance of a break that is left after the replicas advised
MOST_ADDED = 64


@dataclass(frozen=True, slots=True)
class Trend:
    """Arrival rate (requests/s) at `at_s` and its change (requests/s per s), with their covariance."""

    at_s: float
    rate_per_s: float
    slope_per_s2: float
    covariance: tuple[tuple[float, float], tuple[float, float]]

    def draws(self, ahead_s: Floats, rng: np.random.Generator) -> Floats:
        """Rates at these seconds ahead, shape [draw, time], never below zero."""
        line = rng.multivariate_normal((self.rate_per_s, self.slope_per_s2), self.covariance, size=DRAWS)
        return np.asarray(np.maximum(line[:, :1] + line[:, 1:] * ahead_s, 0.0))


@dataclass(frozen=True, slots=True)
class Forecast:
    """Chance that a condition of the SLO breaks within the horizon, its Monte-Carlo error, the median time of it, what would help, and the
    chance of a break within SOON_S.
    """

    horizon_s: float
    chance: float
    error: float
    after_s: float | None  # median over the draws that break; None where none does
    between_s: tuple[float, float] | None  # 5 and 95 % of all draws, those that never break at the horizon
    condition: str  # the one that breaks first in most of them; empty where none does
    add_replicas: int | None  # fewest that leave a chance of SAFE; 0: none needed; None: MOST_ADDED do not
    soon: float


def trend_of(ends_s: Sequence[float], seconds: Sequence[float], arrivals: Sequence[float]) -> Trend:
    """A line through counts of arrivals in windows that end at `ends_s`: weighted least squares, old windows fading by half in HALF_LIFE_S.

    Counts vary as Poisson counts do, or as much more as they are seen to. Raises ValueError without a window.
    """
    at, length, count = (np.asarray(each, float) for each in (ends_s, seconds, arrivals))
    now = float(at[-1])
    centre_s = at - length / 2 - now
    fade = 0.5 ** (-centre_s / HALF_LIFE_S)
    mean = max(float((fade * count).sum() / (fade * length).sum()), 0.5 / float(length.sum()))
    variance = mean / length / fade  # of a window's rate, were its arrivals Poisson
    design = np.stack([np.ones_like(centre_s), centre_s], axis=1)
    prior = np.diag([1e-12, (1200.0 / mean) ** 2])  # a load doubles in ten minutes at the earliest, rather
    precision = design.T @ (design / variance[:, None]) + prior
    covariance = np.linalg.inv(precision)
    rate, slope = covariance @ (design.T @ (count / length / variance))
    rest = count / length - design @ (rate, slope)
    dispersion = float((rest**2 / variance * fade).sum() / max(fade.sum() - 1.0, 1.0))
    covariance = covariance * max(dispersion, 1.0)
    (a, b), (c, d) = covariance.tolist()
    return Trend(now, max(float(rate), 0.0), float(slope), ((a, b), (c, d)))


def forecast(
    trend: Trend,
    curve: LatencyCurve,
    levels: Sequence[Level],
    first_token: Sequence[Level],
    conditions: Sequence[Condition],
    horizon_s: float,
    seed: int = 0,
) -> Forecast:
    """Time at which the SLO breaks if the load goes on as it does, shared evenly by the servers of `levels`.

    `first_token` are levels of what first tokens take beyond the server's slowness.
    """
    rng = np.random.default_rng(seed)
    ahead = np.linspace(0.0, horizon_s, max(2, math.ceil(horizon_s / 60.0) + 1))
    rates = trend.draws(ahead, rng)
    slow = np.stack([level.draws(DRAWS, rng) for level in levels]).max(axis=0)[:, None]  # the slowest of them breaks first
    first = np.stack([level.draws(DRAWS, rng) for level in first_token]).max(axis=0)[:, None]

    def breaks(servers: int) -> tuple[Floats, list[Floats]]:
        each, full = [], curve.full(rates / servers, slow)
        for condition in conditions:
            value = curve.slowed(condition.figure, rates / servers, slow)
            each.append(full | ((value * first if "_ttft_" in condition.figure else value) > condition.limit))
        return np.any(each, axis=0), each

    broken, each = breaks(len(levels))
    ever = broken.any(axis=1)
    chance = float(ever.mean())
    first_at = ahead[broken.argmax(axis=1)][ever]
    early, late = np.quantile(np.where(ever, ahead[broken.argmax(axis=1)], horizon_s), [0.05, 0.95])
    shares = [float((one.argmax(axis=1) == broken.argmax(axis=1))[ever & one.any(axis=1)].sum()) for one in each]
    added: int | None = 0
    if chance > SAFE:
        added = next((k for k in range(1, MOST_ADDED + 1) if breaks(len(levels) + k)[0].any(axis=1).mean() <= SAFE), None)
    return Forecast(
        horizon_s,
        chance,
        math.sqrt(max(chance * (1 - chance), 1e-6) / DRAWS),
        float(np.median(first_at)) if len(first_at) else None,
        (float(early), float(late)) if len(first_at) else None,
        conditions[int(np.argmax(shares))].text if ever.any() else "",
        added,
        float(broken[:, ahead <= SOON_S].any(axis=1).mean()),
    )
