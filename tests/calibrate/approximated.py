"""In place of a sampler: draws of the normal approximation around a pm.Model's mode. Nothing is compiled, which takes most of a fit's time.

The slow tests say the same of the sampler's own draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

Array = NDArray[np.float64]
STEP = 1e-4  # of an unknown, by which the slope of a gradient is read off


@contextmanager
def instead_of_sampling(*users: ModuleType) -> Iterator[None]:
    """Inside, what these modules call `Compiled` or `sample` approximates."""
    with pytest.MonkeyPatch.context() as patch:
        for user in users:
            if hasattr(user, "Compiled"):
                patch.setattr(user, "Compiled", Approximated)
            if hasattr(user, "sample"):
                patch.setattr(user, "sample", sample)
        yield


def sample(model: Any, settings: Any) -> Any:
    """As calibrate.sampling.sample."""
    return Approximated(SimpleNamespace(graph=model)).sample(settings)


class Approximated:
    """As calibrate.sampling.Compiled, of a Graph."""

    def __init__(self, graph: Any) -> None:
        from pytensor.compile.mode import Mode

        self.model, mode = graph.graph, Mode(linker="py", optimizer="fast_compile")
        self.density = self.model.logp_dlogp_function(ravel_inputs=True, mode=mode)
        self.density.set_extra_values({})
        shown = self.model.replace_rvs_by_values(self.model.unobserved_RVs)
        self.shown = self.model.compile_fn(shown, inputs=self.model.value_vars, mode=mode, on_unused_input="ignore")

    def sample(self, settings: Any, data: Mapping[str, Array] | None = None) -> Any:
        """Posterior and sample_stats, as of a sampler whose draws are independent."""
        import xarray as xr
        from pymc.blocking import DictToArrayBijection, RaveledVars

        for name, values in (data or {}).items():
            self.model[name].set_value(np.asarray(values))
        start = DictToArrayBijection.map(self.model.initial_point())
        mode = minimize(lambda x: [-1 * part for part in self.density(x)], start.data, jac=True, method="BFGS", options={"maxiter": 500}).x
        root = np.linalg.cholesky(np.linalg.inv(self._curvature(mode)))
        shape = (settings.chains, settings.draws)
        places = mode + np.random.default_rng(settings.seed).standard_normal((*shape, mode.size)) @ root.T
        rows = [self.shown(DictToArrayBijection.rmap(RaveledVars(x, start.point_map_info))) for x in places.reshape(-1, mode.size)]
        columns = {}
        for variable, values in zip(self.model.unobserved_RVs, zip(*rows, strict=True), strict=True):
            dims = self.model.named_vars_to_dims.get(variable.name, ())
            columns[variable.name] = (("chain", "draw", *dims), np.reshape(values, (*shape, *np.shape(values[0]))))
        coords = {name: list(values) for name, values in self.model.coords.items()}
        stats = xr.Dataset({"diverging": (("chain", "draw"), np.zeros(shape, dtype=bool))})
        return SimpleNamespace(posterior=xr.Dataset(columns, coords=coords), sample_stats=stats)

    def _curvature(self, mode: Array) -> Array:
        """Minus the second derivatives of the log density [unknown, unknown], none less than a hundredth: a prior's is one."""
        moves = STEP * np.eye(mode.size)
        rows = np.array([(self.density(mode - move)[1] - self.density(mode + move)[1]) / (2 * STEP) for move in moves])
        sizes, turns = np.linalg.eigh((rows + rows.T) / 2)
        found: Array = (turns * np.maximum(sizes, 1e-2)) @ turns.T
        return found
