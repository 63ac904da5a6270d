"""Slowness of a server against its simulation, learnt window by window: a Bayesian filter on a grid.

The state is x = log(slowness), a random walk. A window's mean latency m of n requests says
    log m = x + log f + noise,    sd^2 = 4 cv^2 / n + MISFIT_SD^2,
f what the simulation expects and cv its coefficient of variation over requests. Noise is Student's t: single windows lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.twin.curve import LatencyCurve

Floats = NDArray[np.float64]
GRID = np.linspace(-3.0, 3.0, 601)
SLOWNESS = np.exp(GRID)
WALK_SD_PER_MINUTE = 0.02  # a server keeps its pace, but neighbours, clocks and mixes of requests move it
MISFIT_SD = 0.05  # of a mean of many requests, from its curve: about what served runs lie from predictions at rates fitted to them
DEGREES = 4.0
SCALES, SCALE_SD = np.geomspace(0.5, 8.0, 33), 0.4  # of the scatter, and the log sd with which it is known beforehand to be 1
FADE = 0.98  # of what earlier windows said of the scatter, each window
PRIOR_SD = 0.35  # of a server never seen, on a GPU whose rates are known


@dataclass(frozen=True, slots=True)
class Level:
    """Distribution of log slowness over GRID; `learnt` counts the windows that it was learnt from."""

    weights: Floats
    learnt: int = 0

    @classmethod
    def unknown(cls, sd: float = PRIOR_SD) -> Level:
        """Of a server never seen."""
        weights = np.exp(-0.5 * (GRID / sd) ** 2)
        return cls(weights / weights.sum())

    @property
    def median(self) -> float:
        """Median slowness: 1 is as simulated, 2 takes twice as long."""
        return self.quantile(0.5)

    def quantile(self, share: float) -> float:
        """Quantile of slowness."""
        return float(np.exp(np.interp(share, np.cumsum(self.weights), GRID)))

    def draws(self, count: int, rng: np.random.Generator) -> Floats:
        """Draws of slowness."""
        return np.asarray(rng.choice(SLOWNESS, size=count, p=self.weights))

    def later(self, seconds: float) -> Level:
        """The same after a time in which nothing was seen."""
        sd = WALK_SD_PER_MINUTE * math.sqrt(max(seconds, 0.0) / 60.0)
        reach = int(min(4 * sd / (GRID[1] - GRID[0]), len(GRID) // 2))
        if not reach:
            return self
        kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * (GRID[1] - GRID[0]) / sd) ** 2)
        wide = np.convolve(self.weights, kernel / kernel.sum(), mode="same")
        return Level(wide / wide.sum(), self.learnt)

    def learn(self, mean_ms: float, expected_ms: float, sd: float) -> Level:
        """The level after a window whose mean is `mean_ms`, where a server of slowness 1 takes `expected_ms`, with log sd `sd`."""
        if not (0 < mean_ms < math.inf and 0 < expected_ms < math.inf):
            return self
        off = (math.log(mean_ms / expected_ms) - GRID) / sd
        weights = self.weights * (1.0 + off**2 / DEGREES) ** (-(DEGREES + 1) / 2)
        total = float(weights.sum())
        return Level(weights / total, self.learnt + 1) if total > 0 else self

    def intervals_ms(self, expected_ms: float, sd: float, shares: Sequence[float], scatter: Scatter) -> list[tuple[float, float]]:
        """Predicted intervals, each of a share, of a figure that is `expected_ms` at slowness 1, with noise of log sd `sd`, times what
        `scatter` says.
        """
        rng = np.random.default_rng(0)
        times = rng.choice(SCALES, size=4000, p=scatter.weights)
        values = expected_ms * self.draws(4000, rng) * np.exp(sd * times * rng.standard_normal(4000))
        edges = np.quantile(values, [edge for share in shares for edge in ((1 - share) / 2, (1 + share) / 2)]).tolist()
        return list(zip(edges[::2], edges[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class Scatter:
    """Distribution over SCALES of how many times wider than expected a server's windows scatter: neighbours on its machine come and go. A
    window's bucket is likely by what a normal law of that width has inside of it; what earlier ones said fades.
    """

    log_weights: Floats = field(default_factory=lambda: -0.5 * (np.log(SCALES) / SCALE_SD) ** 2)

    @property
    def weights(self) -> Floats:
        """Probability of each of SCALES."""
        found = np.exp(self.log_weights - self.log_weights.max())
        return np.asarray(found / found.sum())

    @property
    def scale(self) -> float:
        """What standard deviations are multiplied by, in the mean."""
        return float(self.weights @ SCALES)

    def learn(self, level: Level, expected_ms: float, bucket_ms: tuple[float, float], sd: float) -> Scatter:
        """After a window whose median lies in this bucket, where `expected_ms` was expected at slowness 1 with log sd `sd`."""
        from scipy.special import ndtr

        low, high = (math.log(max(edge, 1e-9) / expected_ms) if edge < math.inf else math.inf for edge in bucket_ms)
        width = sd * SCALES[:, None]
        inside = (ndtr((high - GRID) / width) - ndtr((low - GRID) / width)) @ level.weights
        return Scatter(FADE * self.log_weights + np.log(np.maximum(inside, 1e-6)))


def noise_sd(curve: LatencyCurve, metric: str, rate_per_s: float, count: float) -> float:
    """Log sd of the mean of `count` requests, which share a queue: twice that of independent ones, and what the curve misses."""
    cv = min(float(curve.at(f"std_{metric}_ms", rate_per_s) / curve.at(f"mean_{metric}_ms", rate_per_s)), 1.0)
    return math.sqrt(4.0 * cv**2 / max(count, 1.0) + MISFIT_SD**2)
