"""Rates as random variables: log-normal around their declared medians, never past a datasheet peak."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from sim.cost.rates import UNITS, Rates
from sim.cost.step_time import step_time_s
from sim.cost.work import Work
from sim.rates.priors import Prior, priors
from sim.specs.gpu import GpuSpec
from sim.specs.precision import Precision

Array = NDArray[np.float64]
# Weights and KV cross the same memory: most of what is unknown about one is unknown about the other.
SHARED_MEMORY = 0.8
LEAST_EFFECT = 0.01  # share by which twice the rate must move the time of some cell, or nothing is learnt of it
# The same for what goes with a larger rate: held at its median, it would be taken for that one's.
LEAST_BESIDE = {"c1_s": 5e-4, "gather_s": 5e-4}
# What iterations of an engine on one GPU, in packaged grids, do not show; they show the other rates.
NOT_BY_ENGINES = ("beta_state", "c1_s", "c1_unit_s", "link_bytes_per_s", "gather_s", "comm_bytes_per_s", "comm_latency_s")
BY_ENGINES = tuple(name for name in UNITS if name not in NOT_BY_ENGINES)
# The declared prior of host costs stands for one published stack; engines differ by more than it allows.
IN_PROCESS = {"c0_s": (1.2e-3, 0.8), "c_seq_s": (24e-6, 0.8), "c_prefill_s": (1.0e-3, 1.0)}  # median, log standard deviation


def calibration_priors(gpu: GpuSpec, precision: Precision) -> dict[str, Prior]:
    """Priors before a GPU's own cells: datasheet x efficiency and weak host costs; published numbers only for what engines do not show.

    Numbers published for this very GPU come from other stacks: they would bias what its own measurements say.
    """
    chosen, plain = priors(gpu, precision), priors(gpu, precision, published=False)
    chosen |= {name: plain[name] for name in BY_ENGINES}
    for name, (median, sigma) in IN_PROCESS.items():
        chosen[name] = replace(chosen[name], median=median, sigma=sigma, basis=f"weak prior, {median:g} s")
    return chosen


def sigmoid_of(prior: Prior) -> tuple[float, float]:
    """(logit of the median's share of the peak, its slope in the standard score) of a rate that a datasheet bounds."""
    share = prior.median / prior.upper
    return float(logit(share)), prior.sigma / (1 - share)


def value(prior: Prior, z: Any, xp: Any = np) -> Any:
    """The rate whose standard score is z: median at 0, log-slope sigma there, below `prior.upper` for every z. `xp` supplies exp (numpy
    or pytensor.tensor).
    """
    if not np.isfinite(prior.upper):
        return prior.median * xp.exp(prior.sigma * z)
    centre, slope = sigmoid_of(prior)
    return prior.upper / (1.0 + xp.exp(-(centre + slope * z)))


def log_slope(prior: Prior, z: Any) -> Any:
    """Derivative of the rate's logarithm in its standard score."""
    if not np.isfinite(prior.upper):
        return prior.sigma
    centre, slope = sigmoid_of(prior)
    return slope * expit(-(centre + slope * z))


def score_root(names: Sequence[str]) -> Array:
    """Lower-triangular root of the prior correlation of standard scores [rate, rate]: the two memory bandwidths are alike."""
    correlation = np.eye(len(names))
    if {"beta", "beta_kv"} <= set(names):
        i, j = names.index("beta"), names.index("beta_kv")
        correlation[i, j] = correlation[j, i] = SHARED_MEMORY
    return np.asarray(np.linalg.cholesky(correlation))


def prior_draws(priors: Mapping[str, Prior], draws: int, rng: np.random.Generator) -> Rates:
    """Rates [draws] from their priors."""
    scores = score_root(list(UNITS)) @ rng.standard_normal((len(UNITS), draws))
    return Rates(**{name: value(priors[name], z) for name, z in zip(UNITS, scores, strict=True)})


def medians(priors: Mapping[str, Prior]) -> Rates:
    """The priors' medians."""
    return Rates(**{name: priors[name].median for name in UNITS})


def identified(work: Work, rates: Rates, among: Collection[str] = tuple(UNITS)) -> tuple[str, ...]:
    """Rates on which the time of some iteration depends, in the formula's order. `work` of floats or arrays, `rates` of floats."""
    plain = np.log(step_time_s(work, rates, np))

    def moved(name: str) -> float:
        doubled = replace(rates, **{name: 2.0 * getattr(rates, name)})
        return float(np.max(np.abs(np.log(step_time_s(work, doubled, np)) - plain)))

    return tuple(name for name in UNITS if name in among and moved(name) > LEAST_BESIDE.get(name, LEAST_EFFECT))
