"""Errors of a replay: per metric and experiment, with coverage of the intervals, against declared bounds and the scatter of replicates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from calibrate.served.replay import METRICS, Prediction
from calibrate.served.runs import Experiment
from sim.errors import SimctlError

# Declared bounds on runs the calibration never saw: median absolute error per request, and error of the run's p99 TTFT.
BOUNDS = {"ttft_s": 0.05, "tpot_s": 0.02, "e2el_s": 0.02, "p99_ttft_s": 0.10}
BURST_BOUNDS = BOUNDS | {"e2el_s": 0.05}  # starved of KV: who is preempted decides
LEVELS = tuple(np.linspace(0.1, 0.95, 18))
QUANTILES = (0.01, *np.linspace(0.05, 0.95, 19).round(2).tolist(), 0.99)
OUTER = 0.05  # on either side of a 90 % interval

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """One metric of one experiment. Errors are relative; `coverage` is the share of requests inside their 90 % interval (NaN for p99).

    `floor` is what a prediction of the median of replicates would miss, None where the load was sent once.
    """

    experiment: str
    metric: str
    requests: int
    median_abs: float
    p90_abs: float
    bias: float
    coverage: float
    bound: float
    floor: float | None = None
    measured_s: float = float("nan")  # median over the requests; of p99 the figure itself
    predicted_s: float = float("nan")

    @property
    def within(self) -> bool:
        return self.median_abs <= self.bound

    @property
    def floor_above(self) -> bool:
        """Whether it misses its bound where replicates lie so far apart that nobody could expect to hold it."""
        return not self.within and self.floor is not None and self.floor > self.bound


@dataclass(frozen=True)
class Replicates:
    """Differences between `sent` measurements of the same requests: medians, over all pairs of them, of the absolute difference of
    logarithms, by metric, and that of the run's p99 TTFT. Of two alike, a prediction of their median lies about 1 / sqrt(2) of it off each.
    """

    experiment: str
    sent: int
    requests: int
    apart: dict[str, float]

    @property
    def floor(self) -> dict[str, float]:
        """Error of a prediction of their median, by metric."""
        return {metric: float(value / np.sqrt(2)) for metric, value in self.apart.items()}


def score(
    experiment: Experiment,
    predicted: Prediction,
    noise: Mapping[str, float],
    run_noise: float = 0.0,
    floor: Mapping[str, float] | None = None,
) -> list[Score]:
    """Scores of TTFT, TPOT and E2EL per request, and of the run's p99 TTFT, of the best single guess of each."""
    bounds, floor = BURST_BOUNDS if experiment.kind == "burst" else BOUNDS, floor or {}
    if experiment.stated is not None:
        return _of_summary(experiment, experiment.stated, predicted, run_noise)
    scores = []
    for metric in METRICS:
        measured, guesses = getattr(experiment, metric), predicted.guess(metric)
        good = np.isfinite(measured) & np.isfinite(guesses) & (measured > 0)
        errors = guesses[good] / measured[good] - 1
        inside = within(places(measured, predicted, metric, noise, run_noise)[good], 1 - 2 * OUTER)
        sizes = (float(np.median(np.abs(errors))), float(np.quantile(np.abs(errors), 0.9)), float(np.median(errors)))
        both = float(np.median(measured[good])), float(np.median(guesses[good]))
        scores.append(Score(experiment.name, metric, len(errors), *sizes, float(inside.mean()), bounds[metric], floor.get(metric), *both))
    answered = np.isfinite(experiment.ttft_s)
    guess = float(np.median(np.quantile(predicted.times["ttft_s"][:, answered], 0.99, axis=1)))
    measured_p99 = float(np.quantile(experiment.ttft_s[answered], 0.99))
    error = guess / measured_p99 - 1
    metric = "p99_ttft_s"
    tail = (abs(error), abs(error), error, float("nan"))
    return [*scores, Score(experiment.name, metric, 1, *tail, bounds[metric], floor.get(metric), measured_p99, guess)]


def _of_summary(experiment: Experiment, stated: Mapping[str, float], predicted: Prediction, run_noise: float) -> list[Score]:
    """Scores of the figures that a summary states: means over the requests, and the p99 of TTFT where it has one."""
    scores = []
    for metric, measured in stated.items():
        times = predicted.times[metric.removeprefix("p99_")]
        each = np.nanquantile(times, 0.99, axis=1) if metric.startswith("p99_") else np.nanmean(times, axis=1)
        guess, place = float(np.median(each)), _places(np.log([measured]), np.log(each)[:, None], max(run_noise, 1e-6))
        error = guess / measured - 1
        inside = float(within(place, 1 - 2 * OUTER)[0])
        scores.append(
            Score(
                experiment.name,
                metric,
                len(experiment.ttft_s),
                abs(error),
                abs(error),
                error,
                inside,
                BOUNDS[metric],
                None,
                measured,
                guess,
            )
        )
    return scores


def distributions(experiment: Experiment, predicted: Prediction) -> dict[str, dict[str, list[float]]]:
    """Quantiles over the answered requests by metric, seconds at QUANTILES: measured, predicted, its 5 and 95 % over draws."""
    found = {}
    for metric in METRICS:
        measured, draws = getattr(experiment, metric), predicted.times[metric]
        good = np.isfinite(measured) & np.isfinite(draws).all(axis=0)
        if good.any():
            each = np.quantile(draws[:, good], QUANTILES, axis=1)
            low, median, high = np.quantile(each, [0.05, 0.5, 0.95], axis=1)
            rows = {"measured": np.quantile(measured[good], QUANTILES), "predicted": median, "low": low, "high": high}
            found[metric] = {name: values.tolist() for name, values in rows.items()}
    return found


def places(measured: Array, predicted: Prediction, metric: str, noise: Mapping[str, float], run_noise: float = 0.0) -> Array:
    """Place (0 to 1) of each request's measured time in its predicted distribution (its PIT): every draw of the rates with the log-normal
    noise of single requests and of what a run's requests have in common. Uniform where predictions are right.
    """
    with np.errstate(divide="ignore"):  # tokens that came all at once took no time
        return _places(np.log(measured), np.log(predicted.times[metric]), float(np.hypot(noise[metric], run_noise)))


def _places(measured: Array, draws: Array, sd: float) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(ndtr((measured - draws) / sd).mean(axis=0))


def within(place: Array, level: float) -> NDArray[np.bool_]:
    """Whether a place lies in the interval that holds this share."""
    return np.asarray(np.abs(place - 0.5) <= level / 2)


def if_right(experiment: Experiment, predicted: Prediction, metric: str, noise: Mapping[str, float], run_noise: float = 0.0) -> Array:
    """Share of requests inside their 90 % interval where each draw in turn is the truth, and the others the prediction [draw]: how far the
    share of one server lies from 0.9 by chance, for all requests of one server are off alike.
    """
    draws = np.log(predicted.times[metric][:, np.isfinite(getattr(experiment, metric))])
    rng, shares = np.random.default_rng(0), []
    for truth, each in enumerate(draws):
        noisy = each + noise[metric] * rng.standard_normal(each.size) + run_noise * rng.standard_normal()
        place = _places(noisy, np.delete(draws, truth, axis=0), float(np.hypot(noise[metric], run_noise)))
        shares.append(within(place, 1 - 2 * OUTER).mean())
    return np.asarray(shares)


def reliability(pairs: Iterable[tuple[Experiment, Prediction]], noise: Mapping[str, float], run_noise: float = 0.0) -> dict[str, Array]:
    """Share of requests inside the interval of each nominal level, by metric: shape [level], levels in LEVELS."""
    out = {}
    for metric in METRICS:
        place = np.concatenate([places(getattr(e, metric), p, metric, noise, run_noise) for e, p in pairs])
        out[metric] = np.asarray([within(place[np.isfinite(place)], level).mean() for level in LEVELS])
    return out


def coverage(scores: Iterable[Score]) -> dict[str, float]:
    """Share of all requests inside their 90 % interval, by metric."""
    every = [s for s in scores if s.coverage == s.coverage]
    by_metric = {metric: [s for s in every if s.metric == metric] for metric in METRICS}
    return {m: sum(s.coverage * s.requests for s in own) / sum(s.requests for s in own) for m, own in by_metric.items() if own}


def replicates(experiments: Sequence[Experiment]) -> list[Replicates]:
    """Every load that was sent more than once, and how far its measurements lie apart."""
    return [_compared(sent) for first in experiments if not first.replicate and len(sent := replicates_of(first, experiments)) > 1]


def replicates_of(first: Experiment, experiments: Sequence[Experiment]) -> list[Experiment]:
    """An experiment and its replicates: of the same load, with the same sizes."""
    sizes = _sizes(first)
    same = [e for e in experiments if e.replicate and e.kind == first.kind and e.load == first.name and np.array_equal(_sizes(e), sizes)]
    return [first, *same]


def _order(experiment: Experiment) -> NDArray[np.int64]:
    """Requests by client and turn, else by size and time: alike in replicates."""
    if experiment.session is not None:
        return np.lexsort((experiment.arrival_s, experiment.session))
    return np.lexsort((experiment.arrival_s, experiment.output_tokens, experiment.prompt_tokens))


def _sizes(experiment: Experiment) -> NDArray[np.int64]:
    return np.array([experiment.prompt_tokens, experiment.output_tokens])[:, _order(experiment)]


def _compared(sent: Sequence[Experiment]) -> Replicates:
    pairs = list(combinations(sent, 2))
    apart = {
        metric: float(np.nanmedian([np.abs(np.log(getattr(a, metric)[_order(a)] / getattr(b, metric)[_order(b)])) for a, b in pairs]))
        for metric in METRICS
    }
    tails = [(np.quantile(a.ttft_s, 0.99), np.quantile(b.ttft_s, 0.99)) for a, b in pairs]
    apart["p99_ttft_s"] = float(np.median([abs(np.log(a / b)) for a, b in tails]))
    return Replicates(sent[0].name, len(sent), len(sent[0].arrival_s), apart)


def require_in_bounds(scores: list[Score]) -> None:
    """Raises SimctlError where a score lies outside its declared bound."""
    if missed := [s for s in scores if not s.within]:
        floor = sum(s.floor_above for s in missed)
        of_them = f"; of {floor} of them the replicate floor does, too" if floor else ""
        raise SimctlError(f"{len(missed)} of {len(scores)} scores lie outside their declared bounds{of_them}")
