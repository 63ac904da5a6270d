"""What a perfect model would still get wrong: the simulator against itself, with a step time that nobody can know better than this.

A request waits for the iteration in flight, and how much of that is left when it comes depends on every iteration before: an error of
half a percent in the step time loses the phase within 200 steps, little more than a second. Runs at rates that differ by that much, the
model and all else alike, are what such a model could expect; how far one lies from the middle of the others is its error. Clients that
start together and wait for each other keep their phase; open loops do not. Hosts' own scatter comes on top: with it every iteration that
carries prefill is also off its price by as much as some at low load were (calibrate.served.scatter).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibrate.served.replay import replay, scattered, study_of
from calibrate.served.runs import Experiment, ServedRun
from calibrate.served.scatter import Scatter
from sim.host import HostRates
from sim.posterior import with_model_error
from sim.rates import RateDraws, Rates

Array = NDArray[np.float64]
KNOWN_TO = 0.005  # log sd of the step time
RUNS = 12


@dataclass(frozen=True)
class Floor:
    """Median relative errors of a perfect model of an experiment: of TTFT, the phase unknown; by metric, prefill scattering, too (empty
    where nobody knows how).
    """

    experiment: str
    phase: float
    scattered: dict[str, float]


def floors(run: ServedRun, experiment: Experiment, rates: RateDraws, host: HostRates, scatter: Scatter | None) -> Floor:
    """Both floors of an experiment."""
    scattered = scattered_floor(run, experiment, rates, host, scatter) if scatter is not None else None
    return Floor(experiment.name, phase_floor(run, experiment, rates, host), scattered or {})


def phase_floor(run: ServedRun, experiment: Experiment, rates: RateDraws, host: HostRates) -> float:
    """Median relative TTFT error, over requests and runs."""
    return _own_error(out_of_phase(run, experiment, rates, host))


def out_of_phase(run: ServedRun, experiment: Experiment, rates: RateDraws, host: HostRates) -> Array:
    """TTFT in seconds of RUNS such runs, [run, request]."""
    each = [replace(rates, point=slowed(rates.point, factor)) for factor in _factors()]
    return np.array([replay(run, experiment, own, host, draws=0).ttft_s for own in each])


def scattered_floor(run: ServedRun, experiment: Experiment, rates: RateDraws, host: HostRates, scatter: Scatter) -> dict[str, float] | None:
    """Median relative error by metric where iterations scatter, too; None where the fast path does not apply to the engine."""
    rng, runs = np.random.default_rng(14), []
    for factor in _factors():
        own = replace(rates, point=slowed(rates.point, factor))
        columns = scattered(study_of(run, experiment, own, host), scatter, rng)
        if columns is None:
            return None
        runs.append(columns[:3])
    return {metric: _own_error(np.array([columns[i] for columns in runs])) for i, metric in enumerate(("ttft_s", "tpot_s", "e2el_s"))}


def _own_error(times: Array) -> float:
    """Median relative error of the middle of the other runs, over runs and requests; times [run, request]."""
    errors = [np.abs(np.median(np.delete(times, k, axis=0), axis=0) / times[k] - 1) for k in range(len(times))]
    return float(np.nanmedian(errors))


def _factors() -> list[float]:
    return [float(f) for f in np.exp(KNOWN_TO * np.random.default_rng(13).standard_normal(RUNS))]


def slowed(rates: Rates, factor: float) -> Rates:
    """Rates at which every iteration takes `factor` times as long."""
    return Rates(**with_model_error({name: getattr(rates, name) for name in rates.names()}, np.asarray(factor)))
