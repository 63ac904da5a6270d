"""A step-time posterior as ArviZ InferenceData: prior and posterior, their predictives of every cell, and the pointwise likelihood.

az.loo(inference_data(fit, posterior)), az.plot_ppc(...), az.plot_forest(...)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate import backend
from calibrate.steps.fit import Posterior, StepFit
from calibrate.steps.iterations import KINDS
from calibrate.steps.random_rates import prior_draws
from calibrate.steps.step_model import log_likelihood, log_times, predictive, sigma_draws
from sim.cost.rates import Rates

Array = NDArray[np.float64]


def inference_data(fit: StepFit, posterior: Posterior, draws: int = 1000, seed: int = 0) -> Any:
    """Groups posterior, prior, their predictives, log_likelihood and observed_data. Variables: the rates that cells show by name, `sigma`
    [kind], `host` [run], and `log_step_s` [cell] of every predictive. `draws` are of the prior; all of the posterior's are kept.
    """
    cells, model, rng = fit.cells, fit.model, np.random.default_rng([seed, 8])
    rates = prior_draws(fit.priors, draws, rng)
    hosts = model.hosts(rng.standard_normal((draws, len(model.runs))))
    before = _drawn(fit, rates, hosts, sigma_draws(draws, rng), 1, rng)
    after = _drawn(fit, posterior.rates, posterior.hosts, posterior.sigma, posterior.chains, rng)
    az = backend.arviz()
    labels = np.char.add(np.char.add(cells.run, "|"), cells.cell)
    groups = {
        "posterior": after["variables"],
        "prior": before["variables"],
        "posterior_predictive": after["predictive"],
        "prior_predictive": before["predictive"],
        "log_likelihood": after["log_likelihood"],
        "observed_data": {"log_step_s": np.log(cells.step_s)},
    }
    coords = {"kind": list(KINDS), "run": list(model.runs), "cell": labels}
    dims = {"sigma": ["kind"], "host": ["run"], "log_step_s": ["cell"]}
    if int(az.__version__.split(".")[0]) >= 1:
        return az.from_dict(groups, coords=coords, dims=dims)
    return az.from_dict(**groups, coords=coords, dims=dims)


def _drawn(fit: StepFit, rates: Rates, hosts: Array, sigma: Array, chains: int, rng: np.random.Generator) -> dict[str, dict[str, Array]]:
    """Variables, predictive and pointwise likelihood [chain, draw, ...] of draws [draw, ...]."""
    model, cells = fit.model, fit.cells
    times = log_times(cells, rates, hosts[:, model.run] if model.runs else None)

    def by_chain(values: Any) -> Array:
        return np.asarray(values, dtype=float).reshape(chains, -1, *np.shape(values)[1:])

    variables = {name: by_chain(getattr(rates, name)) for name in model.free} | {"sigma": by_chain(sigma)}
    return {
        "variables": variables | ({"host": by_chain(hosts)} if model.runs else {}),
        "predictive": {"log_step_s": by_chain(np.log(predictive(cells, times, sigma, rng)))},
        "log_likelihood": {"log_step_s": by_chain(log_likelihood(cells, times, sigma))},
    }
