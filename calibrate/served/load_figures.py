"""Figures of a load beside their predicted intervals: those that `simctl simulate` prints of the same requests (sim.results.intervals)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.served.overhead import ServedRates
from calibrate.served.replay import Prediction, study_of
from calibrate.served.runs import Experiment, ServedRun
from sim.results.intervals import Interval, around, between_replicates, block_intervals, combined, rate_intervals
from sim.results.metrics import latency_figures, summarise
from sim.study.simulate import requests_of
from sim.study.strata import predictors

FIGURES = tuple(f"{which}_{name}_ms" for name in ("ttft", "tpot", "e2el") for which in ("mean", "median", "p99"))


@dataclass(frozen=True)
class FigureScore:
    """A figure of a load, ms: measured, at the median rates, and its 90 % intervals from what is not known of the rates, from run noise,
    and from both.
    """

    experiment: str
    figure: str
    measured: float
    predicted: float
    rates_90: Interval
    run_noise_90: Interval
    both_90: Interval

    @property
    def inside(self) -> bool:
        """Whether the measured figure lies in the interval of both."""
        return self.both_90[0] <= self.measured <= self.both_90[1]


def figure_scores(run: ServedRun, experiment: Experiment, served: ServedRates, predicted: Prediction) -> list[FigureScore]:
    """Every figure of a whole load by its replay at draws of the rates, the first of its study's."""
    study = study_of(run, experiment, served.rates, served.host)
    (record,) = requests_of(study, [None])
    summary = {name: float(value) for name, value in summarise(record, {}).items() if name in FIGURES}
    found = [latency_figures(_ms(each), FIGURES) for each in _by_draw(predicted)]
    known = around(summary, rate_intervals({name: [each[name] for each in found] for name in FIGURES}, predictors(study)))
    noise = between_replicates(summary, around(summary, block_intervals(record)))
    both = combined(summary, noise, known)
    measured = _measured(experiment)
    return [
        FigureScore(experiment.name, name, measured[name], summary[name], known[name], noise[name], both[name])
        for name in FIGURES
        if name in summary and np.isfinite(measured[name]) and name in known and name in noise
    ]


def _measured(experiment: Experiment) -> dict[str, float]:
    """Figures of the requests; of a summary what it states, means and perhaps a percentile, NaN for the rest."""
    if experiment.stated is None:
        return latency_figures(_ms({name: getattr(experiment, name) for name in ("ttft_s", "tpot_s", "e2el_s")}), FIGURES)
    said = {
        f"{'' if name.startswith('p99_') else 'mean_'}{name.removesuffix('_s')}_ms": 1e3 * value
        for name, value in experiment.stated.items()
    }
    return dict.fromkeys(FIGURES, np.nan) | said


def _by_draw(predicted: Prediction) -> list[dict[str, NDArray[np.float64]]]:
    count = len(predicted.times["ttft_s"])
    return [{name: values[i] for name, values in predicted.times.items()} for i in range(count)]


def _ms(seconds: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    return {name.removesuffix("_s"): 1e3 * np.asarray(values, dtype=float) for name, values in seconds.items()}
