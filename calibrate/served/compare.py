"""How wrong a replay is: error per metric and experiment, with coverage of the intervals, against declared bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.served.replay import Prediction
from calibrate.served.runs import Experiment

METRICS = ("ttft_s", "tpot_s", "e2el_s")
# Declared bounds on runs the calibration never saw: median absolute error per request, and error of the run's p99 TTFT.
BOUNDS = {"ttft_s": 0.05, "tpot_s": 0.02, "e2el_s": 0.02, "p99_ttft_s": 0.10}
BURST_BOUNDS = {"e2el_s": 0.05}  # starved of KV: who is preempted decides
COVERAGE = (0.85, 0.95)
LEVELS = tuple(np.linspace(0.1, 0.95, 18))
_Z = {0.9: 1.6448536269514722}

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """One metric of one experiment. Errors are relative; `coverage` is the share of requests inside their 90 % interval."""

    experiment: str
    metric: str
    requests: int
    median_abs: float
    p90_abs: float
    bias: float
    coverage: float
    bound: float

    @property
    def within(self) -> bool:
        return self.median_abs <= self.bound


def score(experiment: Experiment, predicted: Prediction, noise: dict[str, float], run_noise: float = 0.0) -> list[Score]:
    """Scores of TTFT, TPOT and E2EL per request, and of the run's p99 TTFT, of the best single guess of each."""
    scores = []
    for metric in METRICS:
        measured, point = getattr(experiment, metric), predicted.guess(metric)
        good = np.isfinite(measured) & np.isfinite(point) & (measured > 0)
        error = point[good] / measured[good] - 1
        inside = interval_scores(measured, predicted, metric, noise, run_noise)[good] <= _Z[0.9]
        scores.append(
            Score(
                experiment.name,
                metric,
                int(good.sum()),
                float(np.median(np.abs(error))),
                float(np.quantile(np.abs(error), 0.9)),
                float(np.median(error)),
                float(np.mean(inside)),
                BOUNDS[metric] if experiment.kind != "burst" else BURST_BOUNDS.get(metric, BOUNDS[metric]),
            )
        )
    truth, guess = np.quantile(experiment.ttft_s, 0.99), predicted.p99_ttft_s()
    error = float(guess / truth - 1)
    scores.append(Score(experiment.name, "p99_ttft_s", 1, abs(error), abs(error), error, float("nan"), BOUNDS["p99_ttft_s"]))
    return scores


def interval_scores(measured: Array, predicted: Prediction, metric: str, noise: dict[str, float], run_noise: float = 0.0) -> Array:
    """How many standard deviations each request lies off: what is not known of the rates, the noise of single requests, and what a run's
    requests have in common, together (log sd).
    """
    point = predicted.guess(metric)
    draws = predicted.draws.get(metric)
    spread = np.std(np.log(draws), axis=0) if draws is not None and len(draws) > 1 else 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.abs(np.log(measured / point)) / np.sqrt(np.square(spread) + noise[metric] ** 2 + run_noise**2))


def reliability(pairs: list[tuple[Experiment, Prediction]], noise: dict[str, float], run_noise: float = 0.0) -> dict[str, Array]:
    """Share of requests inside the interval of each nominal level, by metric: shape [level], levels in LEVELS."""
    from scipy.special import ndtri

    z = ndtri(0.5 + np.asarray(LEVELS) / 2)
    out = {}
    for metric in METRICS:
        off = np.concatenate([interval_scores(getattr(e, metric), p, metric, noise, run_noise) for e, p in pairs])
        off = off[np.isfinite(off)]
        out[metric] = np.asarray([(off <= limit).mean() for limit in z])
    return out
