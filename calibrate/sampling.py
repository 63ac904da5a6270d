"""Sample a model, and say whether the sample may be believed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from calibrate import backend
from sim.errors import SimctlError

RHAT_MAX = 1.01
ESS_MIN = 400


class UnconvergedError(SimctlError):
    """The sample failed a gate."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the sampler. A sample of `draws` a chain that fails a gate is thrown away for one of `again` where that is set: what is
    wrong with the posterior shows then, too. A draw takes at most 2**`depth` gradients.
    """

    draws: int = 1000
    tune: int = 1500
    chains: int = 4
    seed: int = 0
    cores: int = 2
    target_accept: float = 0.95
    again: int = 0
    depth: int = 10

    def __post_init__(self) -> None:
        if self.draws < 100 or self.tune < 100 or self.chains < 1:
            raise SimctlError(f"too few draws to judge: {self.chains} chains x {self.draws} draws after {self.tune}")


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """The worst R-hat and effective sample size (bulk or tail) over all scalars, and divergent transitions."""

    rhat_max: float
    ess_min: float
    divergences: int

    def failures(self) -> list[str]:
        """The gates that do not hold, in words; empty when the sample may be believed."""
        found = []
        if not self.rhat_max <= RHAT_MAX:
            found.append(f"R-hat {self.rhat_max:.3f} > {RHAT_MAX}")
        if not self.ess_min >= ESS_MIN:
            found.append(f"effective sample size {self.ess_min:.0f} < {ESS_MIN}")
        if self.divergences:
            found.append(f"{self.divergences} divergent transitions")
        return found

    def require(self) -> None:
        """Raise UnconvergedError unless every gate holds."""
        if found := self.failures():
            raise UnconvergedError(f"the posterior did not converge: {'; '.join(found)}")


class Model(Protocol):
    """A model that can be sampled."""

    def for_nutpie(self) -> Any:
        """A model that nutpie has compiled."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A pm.Model, sampled as it is written."""

    graph: Any

    def for_nutpie(self) -> Any:
        return backend.nutpie().compile_pymc_model(self.graph)


class Compiled:
    """A model made ready once and sampled many times, on its own data or on replacements of its pm.Data."""

    def __init__(self, model: Model) -> None:
        with quiet(), backend.exact():
            self._ready = model.for_nutpie()

    def sample(self, settings: Settings, data: Mapping[str, np.ndarray] | None = None) -> Any:
        """InferenceData of the posterior. `data` replaces values of pm.Data by name, of other lengths too where no parameter has them."""
        how = {name: getattr(settings, name) for name in ("draws", "tune", "chains", "seed", "target_accept")}
        with quiet(), backend.exact():
            ready = self._ready.with_data(**data) if data else self._ready
            # fixed cost against bandwidth and rate against exponent are strongly correlated: a diagonal metric mixes
            # three times slower on the step-time model
            found = backend.nutpie().sample(
                ready,
                cores=min(settings.cores, settings.chains),
                low_rank_modified_mass_matrix=True,
                maxdepth=settings.depth,
                progress_bar=False,
                save_warmup=False,
                **how,
            )
        # samplers of ArviZ 1 return xarray's DataTree instead, whose groups are trees themselves
        groups = {name: found[name] for name in ("posterior", "sample_stats")}
        trees = hasattr(groups["posterior"], "to_dataset")
        return SimpleNamespace(**{name: group.to_dataset() for name, group in groups.items()}) if trees else found


def sample(graph: Any, settings: Settings) -> Any:
    """Compile a pm.Model and sample it once."""
    return Compiled(Graph(graph)).sample(settings)


def diagnose(idata: Any) -> Diagnostics:
    """Judge an InferenceData over its free and deterministic scalars."""
    return judge(idata.posterior, int(idata.sample_stats["diverging"].sum()))


def judge(draws: Any, divergences: int) -> Diagnostics:
    """Judge a dataset of draws [chain, draw, ...] and their divergent transitions; constants (zero variance) are skipped."""
    az = backend.arviz()
    with quiet():
        varying = [name for name, v in draws.data_vars.items() if float(v.std(dim=("chain", "draw")).max()) > 0]
        bulk, tail = (f(draws[varying]) for f in (az.ess, lambda d: az.ess(d, method="tail")))
        rhat = az.rhat(draws[varying]) if draws.sizes["chain"] > 1 else None  # of one chain there is none
    return Diagnostics(
        rhat_max=float("nan") if rhat is None else max(float(rhat[name].max()) for name in varying),
        ess_min=min(float(np.nanmin(e[name].values)) for e in (bulk, tail) for name in varying),
        divergences=divergences,
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Samplers warn about their own internals (deprecations, threading); the gates judge the sample instead."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
