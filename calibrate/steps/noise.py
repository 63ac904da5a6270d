"""Measurement noise of a cell: its repeats, its visits, and the host of each visit.

Visits of one cell, minutes apart on one machine, differ by what the host takes: their scatter grows with the host's share of the step, and
where the GPU is alone it is below a percent. So the scatter of a cell's few visits is pooled with what its share lets expect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calibrate.steps.iterations import StepCells
from calibrate.steps.laplace import fitted
from calibrate.steps.step_model import log_times
from sim.cost.rates import OF_HOST, Rates
from sim.quantiles import MEDIAN_SE
from sim.rates.priors import Prior

Array = NDArray[np.float64]
# Standard deviation, from visit to visit, of the logarithm of what the host takes, of what it takes for every sequence (work outside the
# model's call, which goes at one of a few speeds up to a factor of two apart), of what it takes to launch kernel by kernel, and of what
# remains where nothing waits for it: typical of the packaged grids of several visits (tests hold them).
HOST_OF_VISIT, SEQUENCES_OF_VISIT, LAUNCH_OF_VISIT, REST_OF_VISIT = 0.16, 0.24, 0.40, 0.0105
SEQUENCES, LAUNCHING = ("c_seq_s",), ("launch_layer_s",)
POOLED = 2.0  # visits' worth of what the share lets expect in what one cell's visits differ by


def floor(within: Array, visits: Array, visits_sd: Array, typical: Array | float) -> Array:
    """Standard error of the logarithm of each cell's median [n]: from its `visits` and their standard deviation, pooled with the
    `typical` one, and never below what its repeats say (`within`). A single visit is off by the typical one beside its repeats.
    """
    several = (visits > 1) & np.isfinite(visits_sd)
    free = np.where(several, visits - 1, 0.0)
    sd = np.sqrt((free * np.nan_to_num(visits_sd) ** 2 + POOLED * np.square(typical)) / (free + POOLED))
    # a median of three is worth less than their mean
    error = np.where(visits > 2, MEDIAN_SE, 1.0) * sd / np.sqrt(np.maximum(visits, 1.0))
    return np.where(several, np.maximum(error, within), np.hypot(within, typical))


def typical_scatter(cells: StepCells, rates: Rates, hosts: Array | None = None) -> Array:
    """Standard deviation of the logarithm of each cell's visits [n] that its host lets expect, at rates of floats and on hosts that take
    `hosts` [1, n] times as long. Launching is followed as far as it varies, as the GPU hides another part of it on a slow host than on a
    fast one.
    """
    sequences = _half(cells, rates, hosts, SEQUENCES, SEQUENCES_OF_VISIT)
    launching = _half(cells, rates, hosts, LAUNCHING, LAUNCH_OF_VISIT)
    host = _half(cells, rates, hosts, [name for name in OF_HOST if name not in SEQUENCES + LAUNCHING], HOST_OF_VISIT)
    out: Array = np.sqrt(REST_OF_VISIT**2 + host**2 + sequences**2 + launching**2)
    return out


def _half(cells: StepCells, rates: Rates, hosts: Array | None, names: Sequence[str], by: float) -> Array:
    """Half of what the log time [n] grows by between these rates `by` (in the logarithm) lower and higher."""
    slower, faster = (
        log_times(cells, replace(rates, **{name: getattr(rates, name) * np.exp(sign * by) for name in names}), hosts)[0] for sign in (1, -1)
    )
    out: Array = (slower - faster) / 2
    return out


def with_scatter(cells: StepCells, rates: Rates, hosts: Array | None = None) -> StepCells:
    """The cells with the noise floor that their shares of the host let expect, at rates of floats and on hosts as `typical_scatter` takes
    them. Cells of which no visits are known keep theirs.
    """
    visited = cells.visits > 0
    if not visited.any():
        return cells
    noise = floor(cells.within_sd, cells.visits, cells.visits_sd, typical_scatter(cells, rates, hosts))
    return replace(cells, repeat_sd=np.where(visited, noise, cells.repeat_sd))


def with_hosts_of_visits(cells: StepCells, priors: Mapping[str, Prior]) -> StepCells:
    """The cells with the noise floor that rates and hosts first learnt from themselves let expect."""
    if not (cells.visits > 0).any():
        return cells
    fit = fitted(cells, priors)
    return with_scatter(cells, fit.rates, fit.hosts[fit.model.run][None, :] if fit.model.runs else None)
