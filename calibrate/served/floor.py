"""What a perfect model would still get wrong: the simulator against itself, with a step time that nobody can know better than this.

A request waits for the iteration in flight, and how much of that is left when it comes depends on every iteration before: an error of
half a percent in the step time loses the phase within 200 steps, little more than a second. Runs at rates that differ by that much, the
model and all else alike, are what such a model could expect; how far one lies from the middle of the others is its error. Clients that
start together and wait for each other keep their phase; open loops do not. Hosts' own scatter is not in it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calibrate.served.replay import replay
from calibrate.served.runs import Experiment, ServedRun
from sim.host import HostRates
from sim.posterior import with_model_error
from sim.rates import RateDraws, Rates

Array = NDArray[np.float64]
KNOWN_TO = 0.005  # log sd of the step time
RUNS = 12


def phase_floor(run: ServedRun, experiment: Experiment, rates: RateDraws, host: HostRates) -> float:
    """Median relative TTFT error, over requests and runs."""
    ttft = out_of_phase(run, experiment, rates, host)
    errors = [np.abs(np.median(np.delete(ttft, k, axis=0), axis=0) / ttft[k] - 1) for k in range(RUNS)]
    return float(np.median(errors))


def out_of_phase(run: ServedRun, experiment: Experiment, rates: RateDraws, host: HostRates) -> Array:
    """TTFT in seconds of RUNS such runs, [run, request]."""
    factors = np.exp(KNOWN_TO * np.random.default_rng(13).standard_normal(RUNS)).tolist()
    each = [replace(rates, point=slowed(rates.point, factor)) for factor in factors]
    return np.array([replay(run, experiment, own, host, draws=0).ttft_s for own in each])


def slowed(rates: Rates, factor: float) -> Rates:
    """Rates at which every iteration takes `factor` times as long."""
    return Rates(**with_model_error({name: getattr(rates, name) for name in rates.names()}, np.asarray(factor)))
