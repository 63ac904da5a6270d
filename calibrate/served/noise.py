"""The noise of single requests: how far those of a low load lie from their replay, and what of that scattered iterations leave open."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrate.served.replay import Prediction, scattered, study_of
from calibrate.served.runs import Experiment, ServedRun
from calibrate.served.scatter import Scatter
from sim.host import HostRates
from sim.rates import RateDraws

Array = NDArray[np.float64]
METRICS = ("ttft_s", "tpot_s", "e2el_s")
RUNS = 24


def noise_of(pairs: list[tuple[Experiment, Prediction]]) -> dict[str, float]:
    """Standard deviation of the log residual of single requests, by metric."""
    return {
        metric: _sd(np.concatenate([np.log(getattr(measured, metric) / getattr(seen, metric)) for measured, seen in pairs]))
        for metric in METRICS
    }


def beyond_scatter(
    noise: dict[str, float], run: ServedRun, low_loads: tuple[Experiment, ...], rates: RateDraws, host: HostRates, scatter: Scatter
) -> dict[str, float]:
    """What is left of `noise` (log sd) once iterations scatter: the variance that RUNS such runs of the low loads do not have themselves.

    A request at a higher load meets more iterations that carry prefill, so scatter has to be simulated at that load; noise counted
    once at low load would not grow.
    """
    rng, off = np.random.default_rng(23), {metric: [np.empty(0)] for metric in METRICS}
    for low_load in low_loads:
        study = study_of(run, low_load, rates, host)
        runs = [scattered(study, scatter, rng) for _ in range(RUNS)]
        if any(columns is None for columns in runs):
            return noise
        for i, metric in enumerate(METRICS):
            logs = np.log(np.array([columns[i] for columns in runs if columns is not None]))
            off[metric].append((logs - np.median(logs, axis=0)).ravel())
    return {metric: float(np.sqrt(max(noise[metric] ** 2 - _sd(np.concatenate(off[metric])) ** 2, 0.0))) for metric in METRICS}


def _sd(residual: Array) -> float:
    """From quantiles: a few outliers are not the noise."""
    low, high = np.nanquantile(residual, [0.05, 0.95])
    return float((high - low) / (2 * 1.645))
