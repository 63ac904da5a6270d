"""Step-time fit: checks, measurement noise, scatter of hosts, and the sampled posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.sampling import Compiled, Diagnostics, Settings, judge
from calibrate.steps.held_out import other_host_sd
from calibrate.steps.iterations import KINDS, StepCells, check_enough
from calibrate.steps.laplace import Laplace, host_log_sd, laplace
from calibrate.steps.noise import with_hosts_of_visits
from calibrate.steps.random_rates import medians, prior_draws
from calibrate.steps.step_model import log_times, step_model
from calibrate.steps.whitened import Whitened
from sim.cost.rates import Rates
from sim.errors import UsageError
from sim.rates.priors import Prior

Array = NDArray[np.float64]
MIXED_UNITS = 100.0  # no engine is this far off the formula at one cell and not at others; milliseconds among seconds are


@dataclass(frozen=True)
class Posterior:
    """Draws of all rates and of the model error, with their diagnostics. Rates not in `learnt` are their prior's."""

    rates: Rates  # arrays [draw], of a median host
    hosts: Array  # [draw, run]: factors of the hosts of several runs
    sigma: Array  # [draw, kind]
    learnt: tuple[str, ...]
    diagnostics: Diagnostics
    chains: int
    diverging: Array  # [chain, draw]

    @property
    def draws(self) -> int:
        return int(self.sigma.shape[0])


class StepFit:
    """The step-time model of one set of cells. `host_sd` is what hosts differ by; learnt from the runs unless given."""

    def __init__(self, cells: StepCells, priors: Mapping[str, Prior], settings: Settings, host_sd: float | None = None) -> None:
        check_enough(cells)
        check_one_unit(cells, priors)
        self.cells, self.priors, self.settings = with_hosts_of_visits(cells, priors), priors, settings
        self.host_sd = host_log_sd(self.cells, priors) if host_sd is None else host_sd
        self.model = step_model(self.cells, priors, self.host_sd)

    @cached_property
    def around(self) -> Laplace:
        """The approximate posterior, which tells the sampler where to look."""
        return laplace(self.model)

    @property
    def other_host_sd(self) -> float:
        """Factor between another host and the one whose rates these are: of a single run's own both are unknown."""
        return other_host_sd(self.host_sd, self.model.runs)

    def posterior(self) -> Posterior:
        """Sample. Where a gate fails, the sample is thrown away for one of as many draws as `again` in the settings says."""
        compiled = Compiled(Whitened(self.around))
        found = self._judged(self.settings, compiled)
        if found.diagnostics.failures() and self.settings.again:
            found = self._judged(replace(self.settings, draws=self.settings.again), compiled)
        return found

    def _judged(self, how: Settings, compiled: Compiled) -> Posterior:
        import xarray as xr

        score, diverging = _sampled(compiled, how)
        diagnostics = judge(xr.Dataset({"score": (("chain", "draw", "unknown"), score)}), int(diverging.sum()))
        rates, hosts, errors = (score.reshape(-1, self.model.size)[:, part] for part in self.model.parts)
        every = prior_draws(self.priors, len(rates), np.random.default_rng([how.seed, 1]))
        sigma = np.broadcast_to(self.model.sigma(errors), (len(rates), len(KINDS)))
        learnt = replace(every, **self.model.rates(rates))
        return Posterior(learnt, self.model.hosts(hosts), sigma, self.model.free, diagnostics, how.chains, diverging)


def sampled(around: Laplace, settings: Settings) -> tuple[Array, Array]:
    """(unknowns [chain, draw, unknown], whether a transition diverged [chain, draw])."""
    return _sampled(Compiled(Whitened(around)), settings)


def _sampled(compiled: Compiled, settings: Settings) -> tuple[Array, Array]:
    idata: Any = compiled.sample(replace(settings, cores=1))
    return idata.posterior["score"].values, idata.sample_stats["diverging"].values


def check_one_unit(cells: StepCells, priors: Mapping[str, Prior]) -> None:
    """Raise UsageError when some times are so far from the rest, against the formula at the priors' medians, that units must be mixed, or
    all so much longer than it says that they are in another.
    """
    factor = np.log(cells.step_s) - log_times(cells, medians(priors))[0]
    order = np.argsort(factor)
    gaps = np.diff(factor[order])
    widest = int(np.argmax(gaps))
    if gaps[widest] > np.log(MIXED_UNITS):
        apart = order[widest + 1 :] if 2 * (widest + 1) >= len(order) else order[: widest + 1]
        times = "longer" if apart[0] == order[widest + 1] else "shorter"
        raise UsageError(
            f"cell '{cells.cell[apart[0]]}' of {cells.model[apart[0]]} ({cells.step_s[apart[0]]:g} s) and {len(apart) - 1} others are "
            f"{np.exp(gaps[widest]):.0f} times {times} than the rest, each against its work: mixed units?"
        )
    # shorter may be: a link alone takes less than any iteration's fixed cost
    if (median := float(np.median(factor))) > np.log(MIXED_UNITS):
        raise UsageError(
            f"step times are {np.exp(median):.0f} times as long as the datasheet's usual rates give them (median of {len(cells)} cells): "
            "wrong unit?"
        )
