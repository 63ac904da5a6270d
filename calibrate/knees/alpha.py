"""The closed form with a factor on its ratio for every GPU, learnt from knees of which some were never crossed.

    log alpha[gpu] = common + N(0, BETWEEN)
    log knee ~ Normal(log closed_form(alpha[gpu] * r, tau), sigma), censored from above at the last tested batch

How far GPUs differ is declared: two or three of them cannot tell it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate import backend
from calibrate.knees.censored import NEVER, few, log_density, loo
from calibrate.sampling import Settings, diagnose, sample
from sim.knee import closed_form_knee

Array = NDArray[np.float64]
COMMON, BETWEEN = 0.7, 0.3  # log standard deviations: of the factor that all GPUs have, and from GPU to GPU around it


@dataclass(frozen=True)
class Alphas:
    """5, 50 and 95 % of each GPU's factor, the knees' log scatter around the closed form, and what it says of knees left out."""

    factor: Mapping[str, tuple[float, float, float]]
    sigma: float
    left_out: Any


def alpha_model(batch: Array, censored: NDArray[np.bool_], ratio: Array, gpu: NDArray[np.int64], names: Sequence[str], tau: float) -> Any:
    """pm.Model of n knees: batch [n] (the last tested one where `censored`), ratio of KV to weight bytes [n], place of its GPU [n]."""
    few(batch, censored)
    pm, pt = backend.pymc(), backend.tensor()
    log_batch = np.log(batch)
    with pm.Model(coords={"gpu": list(names)}) as model:
        seen, bound = pm.Data("log_batch", log_batch), pm.Data("upper", np.where(censored, log_batch, log_batch + NEVER))
        common = pm.Normal("common", 0.0, COMMON)
        log_alpha = pm.Deterministic("log_alpha", common + BETWEEN * pm.Normal("own", dims="gpu"), dims="gpu")
        sigma = pm.HalfNormal("sigma", 0.7)
        mean = pt.log(closed_form_knee(pt.exp(log_alpha)[gpu] * ratio, tau))
        pm.Censored("log_knee", pm.Normal.dist(mean, sigma), lower=None, upper=bound, observed=seen)
    return model


def learn_alpha(batch: Array, censored: NDArray[np.bool_], ratio: Array, gpus: Sequence[str], tau: float, settings: Settings) -> Alphas:
    """Sample the factors of the GPUs named for each knee [n]. UsageError with fewer than three finite knees; UnconvergedError."""
    names, place = np.unique(list(gpus), return_inverse=True)
    idata = sample(alpha_model(batch, censored, ratio, place, [str(n) for n in names], tau), settings)
    diagnose(idata).require()
    alpha = np.exp(idata.posterior["log_alpha"].values)  # [chain, draw, gpu]
    sigma = idata.posterior["sigma"].values
    mean = np.log(closed_form_knee(alpha[..., place] * ratio, tau))
    left_out = loo(idata, log_density(np.log(batch), censored, mean, sigma[..., None]))
    low, middle, high = np.quantile(alpha, [0.05, 0.5, 0.95], axis=(0, 1))
    factor = {str(name): (float(low[i]), float(middle[i]), float(high[i])) for i, name in enumerate(names)}
    return Alphas(factor, float(np.median(sigma)), left_out)
