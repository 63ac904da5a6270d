"""The posterior of the step-time model as a normal around its mode: in half a second what the sampler takes ten for.

Rates are well shown by hundreds of cells, and in the model's own coordinates (standard scores of log-normal priors) their posterior is
close to normal. So it is taken for what is fitted many times over, each time without some of the cells, and tells the sampler where to
look; what is packaged and answered with is sampled.

The mode is found by iterated weighted least squares, a Student-t being a normal of unknown variance; the model error of each kind has its
posterior on a grid, given the mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from calibrate import backend
from calibrate.steps.bend import Lay, run_index, run_names
from calibrate.steps.cells import StepCells, bill_of
from calibrate.steps.machines import host_precision, machines_of
from calibrate.steps.model import NU, SIGMA_MEDIAN, SIGMA_SPREAD, floored, free_rates, kind_index
from calibrate.steps.rates import SHARED_MEMORY, prior_draws, value
from sim.price import step_time_s
from sim.priors import Prior
from sim.rates import UNITS, Rates, at_host

Array = NDArray[np.float64]
STEP = 1e-4  # of a standard score, for derivatives
LAPS, ENOUGH, FARTHEST = 40, 1e-4, 2.0  # steps, the last of them, and the longest
LAPS_OF_SPREAD = 5
SIGMAS = np.geomspace(3e-4, 0.4, 150)


# Log standard deviation of what hosts differ by, typical of the H100's fourteen runs (a test holds it), and how many runs' worth that is to
# any set of runs.
HOST_SD, HOSTS_BEFORE = 0.13, 4.0


@dataclass(frozen=True)
class Approximation:
    """Mode and covariance of (scores of the free rates, log factor of each run's host), and the model error's posterior on SIGMAS."""

    free: tuple[str, ...]
    runs: tuple[str, ...]
    priors: Mapping[str, Prior]
    lay: Lay
    errors: Array  # [kind, SIGMAS]

    @property
    def hosts(self) -> Array:
        """Log factor of each run's host [run], at the mode."""
        return self.lay.middle[len(self.free) :]

    @property
    def rates(self) -> dict[str, float]:
        """Rates of a middle host, at the mode; those that no cell shows at their priors' medians."""
        known = _values(self.free, self.priors, self.lay.middle[: len(self.free)])
        return {name: float(known.get(name, self.priors[name].median)) for name in UNITS}

    def draws(self, count: int, rng: np.random.Generator) -> tuple[Rates, Array, Array]:
        """(rates of a middle host, arrays [draw]; factors of the hosts seen [draw, run]; model error [draw, kind])."""
        x = rng.multivariate_normal(self.lay.middle, self.lay.covariance, size=count, method="cholesky")
        rates = replace(prior_draws(self.priors, count, rng), **_values(self.free, self.priors, x[:, : len(self.free)].T))
        sigma = np.stack([rng.choice(SIGMAS, count, p=weights) for weights in self.errors], axis=1)
        return rates, np.exp(x[:, len(self.free) :]), sigma


@backend.one_thread()
def approximate(
    cells: StepCells,
    priors: Mapping[str, Prior],
    host_sd: float = HOST_SD,
    *,
    free: Sequence[str] | None = None,
    runs: Sequence[str] | None = None,
    machines: Sequence[str] | None = None,
    near: Approximation | None = None,
) -> Approximation:
    """Fit the cells, whose runs' hosts differ by `host_sd` (log sd). `free` rates and `runs`, with
    their `machines`, are those that the cells show, unless told: a run without cells is known as far as its machine is.
    The mode is looked for from that of another fit of the same cells, `near`, if there is one: it is found sooner there.
    """
    free, runs = tuple(free_rates(cells) if free is None else free), tuple(run_names(cells) if runs is None else runs)
    fit = _Fit(cells, priors, free, runs)
    machines = machines_of(cells, runs) if machines is None else machines
    precision = fit.prior_precision(machines, host_sd)
    x, errors = np.zeros(len(precision)), _normed(_before())
    if near is not None:
        x, errors = near.lay.middle, near.errors
    left, slopes = fit.missed(x), np.empty(0)
    for _ in range(LAPS):
        slopes = fit.slopes(x, left)
        weigh = (NU + 1) / (NU * fit.variance(errors) + left**2)
        step = np.linalg.solve(slopes.T @ (weigh[:, None] * slopes) + precision, slopes.T @ (weigh * left) - precision @ x)
        step *= min(1.0, FARTHEST / float(np.abs(step).max()))  # far from the mode a line is no guide
        x = x + step
        left = fit.missed(x)
        errors = fit.errors(left)
        if float(np.abs(step).max()) < ENOUGH:
            break
    slopes = fit.slopes(x, left)
    known = (NU + 1) / (NU + 3) / fit.variance(errors)
    covariance = np.linalg.inv(slopes.T @ (known[:, None] * slopes) + precision)
    return Approximation(free, runs, priors, Lay(x, (covariance + covariance.T) / 2), errors)


def spread_of_hosts(cells: StepCells, priors: Mapping[str, Prior]) -> float:
    """Log standard deviation of what the hosts of these runs differ by, pooled with HOST_SD as if that were of HOSTS_BEFORE runs more."""
    spread, found = HOST_SD, None
    for _ in range(LAPS_OF_SPREAD if run_names(cells) else 0):
        found = approximate(cells, priors, spread, near=found)
        squares = found.hosts**2 + np.diag(found.lay.covariance)[len(found.free) :]
        spread = float(np.sqrt((HOSTS_BEFORE * HOST_SD**2 + squares.sum()) / (HOSTS_BEFORE + squares.size)))
    return spread


class _Fit:
    """Cells as arrays, and what the formula misses of them in logarithms, with its slopes."""

    def __init__(self, cells: StepCells, priors: Mapping[str, Prior], free: tuple[str, ...], runs: tuple[str, ...]) -> None:
        self.priors, self.free, self.runs = priors, free, runs
        self.bill, self.kind, self.run = bill_of(floored(cells.bill)), kind_index(cells), run_index(cells, runs)
        self.observed, self.own = np.log(cells.step_s), np.square(cells.repeat_sd)
        self.plain = Rates(**{name: priors[name].median for name in UNITS})

    def prior_precision(self, machines: Sequence[str], host_sd: float) -> Array:
        """Inverse covariance of the prior [x, x]."""
        size = len(self.free)
        precision = np.eye(size + len(self.runs))
        if self.runs:
            precision[size:, size:] = host_precision(machines, host_sd)
        if {"beta", "beta_kv"} <= set(self.free):
            both = [self.free.index("beta"), self.free.index("beta_kv")]
            precision[np.ix_(both, both)] = np.linalg.inv([[1.0, SHARED_MEMORY], [SHARED_MEMORY, 1.0]])
        return precision

    def variance(self, errors: Array) -> Array:
        """Squared scale of each cell [n], its model error in the mean."""
        out: Array = np.square((errors @ SIGMAS)[self.kind]) + self.own
        return out

    def missed(self, x: Array) -> Array:
        """log(measured / price) [n] at one place x, or [place, n] at several."""
        scores = np.moveaxis(x[..., : len(self.free), None], -2, 0)
        rates = replace(self.plain, **_values(self.free, self.priors, scores))
        if self.runs:
            rates = at_host(rates, np.exp(x[..., len(self.free) :])[..., self.run])
        out: Array = self.observed - np.log(step_time_s(self.bill, rates, np))
        return out

    def slopes(self, x: Array, left: Array) -> Array:
        """Slopes of the log price [n, x], given what is missed at x."""
        size, units = len(self.free), np.eye(len(x))
        ways = np.vstack([units[:size], units[size:].sum(axis=0)]) if self.runs else units  # each cell knows one host
        every = (left - self.missed(x + STEP * ways)) / STEP
        return np.stack([*every[:size], *(np.where(self.run == r, every[-1], 0.0) for r in range(len(self.runs)))], axis=1)

    def errors(self, left: Array) -> Array:
        """Posterior of the model error on the grid [kind, SIGMAS], from what the formula misses of each cell."""
        total = _before()
        for k, (mine, scale, logs) in self._scales.items():
            total[k] += (-logs - (NU + 1) / 2 * np.log1p(np.square(left[mine] / scale) / NU)).sum(axis=1)
        return _normed(total)

    @cached_property
    def _scales(self) -> dict[int, tuple[NDArray[np.bool_], Array, Array]]:
        """Which cells are of each kind, the scale [SIGMAS, cell] of what is missed of them, and its logarithm."""
        of_kind = {int(k): self.kind == k for k in np.unique(self.kind)}
        scales = {k: np.sqrt(np.square(SIGMAS[:, None]) + self.own[mine]) for k, mine in of_kind.items()}
        return {k: (mine, scales[k], np.log(scales[k])) for k, mine in of_kind.items()}


def _values(free: tuple[str, ...], priors: Mapping[str, Prior], scores: Array) -> dict[str, Array]:
    return {name: value(priors[name], z) for name, z in zip(free, scores, strict=True)}


def _before() -> Array:
    """Log prior density of the model error on the grid, which is even in its logarithm [kind, SIGMAS]."""
    out: Array = -0.5 * np.square(np.log(SIGMAS / SIGMA_MEDIAN[:, None]) / SIGMA_SPREAD)
    return out


def _normed(log_weights: Array) -> Array:
    weights: Array = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights
