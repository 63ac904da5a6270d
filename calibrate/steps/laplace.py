"""Laplace approximation of the step-time posterior: a normal around its mode, for fits that are repeated without some of their cells.

The mode is found by Fisher scoring over the model's standard scores, which rates, hosts and model errors all have. It also tells the
sampler where to look. What is packaged and answered with is sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate import backend
from calibrate.steps.iterations import StepCells
from calibrate.steps.random_rates import medians, prior_draws
from calibrate.steps.step_model import StepModel, step_model
from sim.cost.rates import Rates
from sim.rates.priors import Prior

Array = NDArray[np.float64]
STEPS, ENOUGH, FARTHEST = 60, 1e-3, 2.0  # steps of Fisher scoring, the size of the last one and of the longest, in standard scores
DIFFERENCE, LEAST_CURVATURE = 1e-4, 0.1  # in standard scores; of the prior's own curvature
# Log standard deviation of hosts, typical of the H100's runs (a test holds it), and how many runs' worth that is to any set of runs.
HOST_SD, HOSTS_BEFORE = 0.17, 4.0
HOST_ROUNDS = 5


@dataclass(frozen=True)
class Laplace:
    """Mode and covariance of a model's unknowns."""

    model: StepModel
    mode: Array
    covariance: Array

    @property
    def rates(self) -> Rates:
        """Rates of a median host at the mode, as floats; those that no cell shows at their priors' medians."""
        found = self.model.rates(self.mode[self.model.parts[0]])
        return replace(medians(self.model.priors), **{name: float(each) for name, each in found.items()})

    @property
    def hosts(self) -> Array:
        """Factor of each run's host [run], at the mode."""
        return self.model.hosts(self.mode[self.model.parts[1]])

    def draws(self, count: int, rng: np.random.Generator) -> tuple[Rates, Array, Array]:
        """(rates of a median host, arrays [draw]; factors of the runs' hosts [draw, run]; model error [draw, kind])."""
        x = rng.multivariate_normal(self.mode, self.covariance, size=count, method="cholesky")
        rates, hosts, errors = (x[:, part] for part in self.model.parts)
        every = replace(prior_draws(self.model.priors, count, rng), **self.model.rates(rates))
        return every, self.model.hosts(hosts), np.broadcast_to(self.model.sigma(errors), (count, self.model.sigma(errors).shape[-1]))


@backend.one_thread()
def laplace(model: StepModel) -> Laplace:
    """Fit the model."""
    x = np.zeros(model.size)
    here = model.misses(x)
    for _ in range(STEPS):
        step = np.linalg.solve(_information(model, *here[1:]), model.gradient(*here) - x)
        step *= min(1.0, FARTHEST / float(np.abs(step).max()))
        before = _log_posterior(model, x, *here[:2])
        here = model.misses(x + step)
        while _log_posterior(model, x + step, *here[:2]) < before and np.abs(step).max() > ENOUGH:
            step = step / 2
            here = model.misses(x + step)
        x = x + step
        if float(np.abs(step).max()) <= ENOUGH:
            break
    covariance = np.linalg.inv(_curvature(model, x, here))
    return Laplace(model, x, (covariance + covariance.T) / 2)


def fitted(cells: StepCells, priors: Mapping[str, Prior], host_sd: float = HOST_SD, **more: Any) -> Laplace:
    """Approximate posterior of cells whose runs' hosts differ by `host_sd`; `more` as calibrate.steps.step_model.step_model takes it."""
    return laplace(step_model(cells, priors, host_sd, **more))


def host_log_sd(cells: StepCells, priors: Mapping[str, Prior]) -> float:
    """Log standard deviation of the hosts of these runs, pooled with HOST_SD as if that were of HOSTS_BEFORE runs more."""
    sd = HOST_SD
    for _ in range(HOST_ROUNDS if cells.run_names() else 0):
        found = fitted(cells, priors, sd)
        hosts, root = found.model.parts[1], found.model.host_root
        squares = np.square(np.log(found.hosts)) + np.diag(root @ found.covariance[hosts, hosts] @ root.T)
        sd = float(np.sqrt((HOSTS_BEFORE * HOST_SD**2 + squares.sum()) / (HOSTS_BEFORE + squares.size)))
    return sd


def _log_posterior(model: StepModel, x: Array, t: Array, scale: Array) -> float:
    return model.log_likelihood(t, scale) - float(x @ x) / 2


def _information(model: StepModel, scale: Array, slopes: Array) -> Array:
    """Information of the unknowns: expected of a Student-t, of which location and scale share none."""
    nu, jacobian = model.nu, model.jacobian(slopes)
    size = jacobian.shape[1]
    out = np.eye(model.size)
    out[:size, :size] += (nu + 1) / (nu + 3) * (jacobian.T / np.square(scale)) @ jacobian
    errors = np.arange(size, model.size)
    out[errors, errors] += 2 * nu / (nu + 3) * model.by_kind(np.square(model.model_share(scale)))
    return out


def _curvature(model: StepModel, x: Array, here: tuple[Array, Array, Array]) -> Array:
    """Negative Hessian of the log posterior at its mode, by differences of the gradient; cells far off count for less in it than in the
    information. The latter where it is not positive definite, as it may be when few cells tell many unknowns.
    """
    gradient = model.gradient(*here)
    rows = [(gradient - model.gradient(*model.misses(x + DIFFERENCE * unit))) / DIFFERENCE for unit in np.eye(model.size)]
    out = np.eye(model.size) + (np.array(rows) + np.transpose(rows)) / 2
    return out if np.linalg.eigvalsh(out)[0] > LEAST_CURVATURE else _information(model, *here[1:])
