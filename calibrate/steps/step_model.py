"""The step-time model in PyMC: the one formula, its rates unknown, and its error.

    log step_s ~ StudentT(NU, log step_time(work, rates on the run's host), sqrt(sigma[kind]**2 + repeat_sd**2))

`sigma[kind]` is the model error of decodes, of prefills, of mixed iterations and of those over several GPUs; `repeat_sd` is the noise of
the measurement. Where cells are of several runs, each run's host takes what hosts take (sim.cost.rates.OF_HOST) by a factor of its own,
log-normal around one and alike on one machine (docs/adr/04). Every unknown has a standard normal score.

The step time is sim.cost.step_time itself: over PyTensor in the pm.Model that is sampled, over numbers that carry their derivatives
(calibrate.steps.dual) in the approximate fits that cells are held out with. A test holds the two densities equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from calibrate import backend
from calibrate.steps.distinct import distinct
from calibrate.steps.dual import Dual, DualNamespace
from calibrate.steps.iterations import FIELDS, KINDS, StepCells, machines_of
from calibrate.steps.random_rates import identified, log_slope, medians, score_root, value
from sim.cost.rates import UNITS, Rates, at_host
from sim.cost.step_time import step_time_s
from sim.cost.work import Work
from sim.rates.priors import Prior

Array = NDArray[np.float64]
NU = 5.0  # Student-t degrees of freedom: one cell in a hundred may be off by several sigma without dragging the rates along
NORMAL = 1e3  # degrees of freedom of what is as good as normal
# Model error before any cell is seen, by kind: log-normal. Over several GPUs the formula misses more.
SIGMA_MEDIAN, SIGMA_LOG_SD = np.array([0.015, 0.015, 0.015, 0.04]), 0.7
# Part of the variance of hosts that starts of an engine on one machine have in common: of the packaged grids (a test holds it).
SAME_MACHINE = 0.6
# Step times worked out at a time: intermediate arrays then stay in a processor's cache.
AT_ONCE = 2**15
NEXT_TO_NOTHING = 1e-9


@dataclass(frozen=True)
class StepModel:
    """Unknowns of cells: standard scores of the rates that they show, of the hosts of several runs, and of the model errors.

    `known_sigma` [kind] is the model error where it is known, and `nu` its degrees of freedom. `host_sd` is what hosts differ by.
    """

    cells: StepCells
    priors: Mapping[str, Prior]
    free: tuple[str, ...]
    runs: tuple[str, ...]
    machines: tuple[str, ...]  # of each run
    host_sd: float
    known_sigma: Array | None = None
    nu: float = NU

    @cached_property
    def parts(self) -> tuple[slice, slice, slice]:
        """Places of rates, hosts and model errors among the unknowns."""
        rates, hosts = len(self.free), len(self.free) + len(self.runs)
        return slice(0, rates), slice(rates, hosts), slice(hosts, hosts + (len(KINDS) if self.known_sigma is None else 0))

    @property
    def size(self) -> int:
        """Number of unknowns."""
        return int(self.parts[2].stop)

    @cached_property
    def rate_root(self) -> Array:
        """Standard scores of rates over their independent ones [free, free]."""
        return score_root(self.free)

    @cached_property
    def host_root(self) -> Array:
        """Logarithms of hosts over their independent scores [run, run]: starts on one machine are alike."""
        labels = np.asarray(self.machines, dtype=str)
        same = SAME_MACHINE * (labels[:, None] == labels[None, :]) + (1 - SAME_MACHINE) * np.eye(len(labels))
        return self.host_sd * np.asarray(np.linalg.cholesky(same)) if self.runs else np.zeros((0, 0))

    @cached_property
    def run(self) -> NDArray[np.int64]:
        """Place of each cell's run among `runs` [n]; zeros where there are none."""
        return np.array([self.runs.index(run) if self.runs else 0 for run in self.cells.run.tolist()], dtype=np.int64)

    @cached_property
    def kind(self) -> NDArray[np.int64]:
        return self.cells.kind_index()

    @cached_property
    def observed(self) -> Array:
        return np.asarray(np.log(self.cells.step_s))

    def rates(self, scores: Array) -> dict[str, Array]:
        """The free rates at independent scores [..., free]."""
        z = scores @ self.rate_root.T
        return {name: value(self.priors[name], z[..., i]) for i, name in enumerate(self.free)}

    def hosts(self, scores: Array) -> Array:
        """Factors of the runs' hosts at independent scores [..., run]."""
        return np.asarray(np.exp(scores @ self.host_root.T))

    def sigma(self, scores: Array) -> Array:
        """Model error [..., kind] at scores [..., kind]."""
        return SIGMA_MEDIAN * np.exp(SIGMA_LOG_SD * scores) if self.known_sigma is None else self.known_sigma

    @cached_property
    def work(self) -> Work:
        return self.cells.as_work()

    def log_times(self, scores: Array, hosts: Array) -> tuple[Array, Array]:
        """Log step times [n] at independent scores of rates and of hosts, and their slopes [free + 1, n]: in the scores z of rates and in
        the logarithm of the cell's own host.
        """
        z, last = self.rate_root @ scores, len(self.free)
        known = {name: value(self.priors[name], z[i]) for i, name in enumerate(self.free)}
        duals = {name: Dual(v, {i: v * log_slope(self.priors[name], z[i])}) for i, (name, v) in enumerate(known.items())}
        rates = replace(medians(self.priors), **duals)
        if self.runs:
            factor = self.hosts(hosts)[self.run]
            rates = at_host(rates, Dual(factor, {last: factor}))
        found = step_time_s(self.work, rates, DualNamespace)
        slopes = np.zeros((last + 1, len(self.cells)))
        for i, slope in found.slopes.items():
            slopes[i] = slope
        return np.log(found.value), slopes / found.value

    def misses(self, x: Array) -> tuple[Array, Array, Array]:
        """At unknowns x: how far cells are from their expected log times, in scales [n], the scale [n], and the slopes of log times."""
        rates, hosts, errors = (x[part] for part in self.parts)
        times, slopes = self.log_times(rates, hosts)
        scale = np.sqrt(np.square(self.sigma(errors)[self.kind]) + np.square(self.cells.repeat_sd))
        return (self.observed - times) / scale, scale, slopes

    def log_likelihood(self, t: Array, scale: Array) -> float:
        """Log density of what `misses` says, up to a constant."""
        return float((-np.log(scale) - (self.nu + 1) / 2 * np.log1p(np.square(t) / self.nu)).sum())

    def gradient(self, t: Array, scale: Array, slopes: Array) -> Array:
        """Gradient of the log likelihood in the unknowns."""
        pull = (self.nu + 1) * t / (self.nu + np.square(t))
        each = pull / scale
        hosts = np.bincount(self.run, slopes[-1] * each, minlength=len(self.runs))[: len(self.runs)]
        errors = self.by_kind((pull * t - 1) * self.model_share(scale))
        return np.concatenate([slopes[:-1] @ each @ self.rate_root, hosts @ self.host_root, errors])

    def jacobian(self, slopes: Array) -> Array:
        """Slopes of log times in the unknowns of rates and hosts [n, free + run]."""
        hosts = slopes[-1][:, None] * (self.run[:, None] == np.arange(len(self.runs)))
        return np.hstack([slopes[:-1].T @ self.rate_root, hosts @ self.host_root])

    def model_share(self, scale: Array) -> Array:
        """Slope of the logarithm of the scale [n] in the score of its kind's model error."""
        return SIGMA_LOG_SD * (1 - np.square(self.cells.repeat_sd / scale))

    def by_kind(self, values: Array) -> Array:
        """Sums of values [n] over the kinds whose model errors are unknown."""
        sums = np.bincount(self.kind, values, minlength=len(KINDS)).astype(float)
        return np.asarray(sums[: self.size - self.parts[2].start])

    def graph(self) -> Any:
        """The pm.Model: unknowns are independent standard normal scores; rates have their names; `log_step_s` [cell] is observed."""
        pm, pt = backend.pymc(), backend.tensor()
        labels = np.char.add(np.char.add(self.cells.run, "|"), self.cells.cell).tolist()
        with pm.Model(coords={"rate": self.free, "run": self.runs, "kind": KINDS, "cell": labels}) as model:
            scores = self.rate_root @ pm.Normal("rate_score", dims="rate")
            found = {name: pm.Deterministic(name, value(self.priors[name], scores[i], pt)) for i, name in enumerate(self.free)}
            rates, host = replace(medians(self.priors), **found), None
            if self.runs:
                host = pm.Deterministic("host", pt.exp(self.host_root @ pm.Normal("host_score", dims="run")), dims="run")
            if self.known_sigma is None:
                error = pm.Normal("sigma_score", dims="kind")
                sigma = pm.Deterministic("sigma", SIGMA_MEDIAN * pt.exp(SIGMA_LOG_SD * error), dims="kind")
            else:
                sigma = pt.as_tensor(self.known_sigma)
            scale = pt.sqrt(pt.square(sigma[self.kind]) + np.square(self.cells.repeat_sd))
            log_time = pt.log(self._step_times(rates, host, pt))
            pm.StudentT("log_step_s", nu=self.nu, mu=log_time, sigma=scale, observed=self.observed, dims="cell")
        return model

    def _step_times(self, rates: Rates, host: Any, pt: Any) -> Any:
        """Seconds [cell] over PyTensor. Cells whose launches no graph holds come apart from those that have none to wait for."""
        launching = self.cells.work[:, FIELDS.index("launch_layers")] > 0
        parts = [part for part in (np.flatnonzero(launching), np.flatnonzero(~launching)) if part.size]
        times = [
            step_time_s(
                distinct(with_slopes(self.cells.take(part).as_work())), rates if host is None else at_host(rates, host[self.run[part]]), pt
            )
            for part in parts
        ]
        return pt.concatenate(times)[np.argsort(np.concatenate(parts))]


def with_slopes(work: Work) -> Work:
    """The work with a billionth of a byte or flop where some cells have none: the cube root in a smooth maximum has no slope at zero."""
    return Work(*(np.maximum(column, NEXT_TO_NOTHING) if isinstance(column, np.ndarray) else column for column in work))


def step_model(
    cells: StepCells,
    priors: Mapping[str, Prior],
    host_sd: float = 0.0,
    *,
    free: Sequence[str] | None = None,
    runs: Sequence[str] | None = None,
    machines: Sequence[str] | None = None,
    known_sigma: Array | None = None,
    nu: float = NU,
) -> StepModel:
    """The model of cells. `free` rates and `runs`, with their `machines`, are those that the cells show, unless given: a run without cells
    is known as far as its machine is.
    """
    free = identified(cells.as_work(), medians(priors)) if free is None else free
    runs = cells.run_names() if runs is None else runs
    machines = machines_of(cells, runs) if machines is None else machines
    return StepModel(cells, priors, tuple(free), tuple(runs), tuple(machines), host_sd, known_sigma, nu)


def sigma_draws(count: int, rng: np.random.Generator) -> Array:
    """Model errors [draw, kind] from their prior."""
    out: Array = SIGMA_MEDIAN * np.exp(SIGMA_LOG_SD * rng.standard_normal((count, len(KINDS))))
    return out


def log_times(cells: StepCells, rates: Rates, hosts: Array | None = None) -> Array:
    """log seconds [draw, n] for rates of arrays [draw] (or scalars), on hosts that take `hosts` times as long ([draw, n] or [draw, 1])."""
    columns = {name: np.asarray(getattr(rates, name), dtype=float).reshape(-1, 1) for name in UNITS}
    work, factors = cells.as_work(), np.ones((1, 1)) if hosts is None else hosts
    draws = max(len(values) for values in (*columns.values(), factors))
    out, rows = np.empty((draws, len(cells))), max(1, AT_ONCE // max(len(cells), 1))

    def some(values: Array, first: int) -> Array:
        return values if len(values) == 1 else values[first : first + rows]

    for first in range(0, draws, rows):
        at = Rates(**{name: some(values, first) for name, values in columns.items()})
        out[first : first + rows] = np.log(step_time_s(work, at if hosts is None else at_host(at, some(factors, first)), np))
    return out


def noise_scale(cells: StepCells, sigma: Array) -> Array:
    """Scale [draw, n] of errors: the formula's own, sigma [draw, kind], and the cells' noise."""
    out: Array = np.sqrt(sigma[:, cells.kind_index()] ** 2 + cells.repeat_sd**2)
    return out


def log_likelihood(cells: StepCells, log_time: Array, sigma: Array) -> Array:
    """Pointwise Student-t log density [draw, n] from log times [draw, n] and sigma [draw, kind]."""
    scale = noise_scale(cells, sigma)
    t = (np.log(cells.step_s) - log_time) / scale
    constant = gammaln((NU + 1) / 2) - gammaln(NU / 2) - 0.5 * np.log(NU * np.pi)
    out: Array = constant - np.log(scale) - (NU + 1) / 2 * np.log1p(t**2 / NU)
    return out


def predictive(cells: StepCells, log_time: Array, sigma: Array, rng: np.random.Generator) -> Array:
    """Draws of a new measurement of each cell, seconds [draw, n]: rates, model error and noise together."""
    out: Array = np.exp(log_time + noise_scale(cells, sigma) * rng.standard_t(NU, size=log_time.shape))
    return out
