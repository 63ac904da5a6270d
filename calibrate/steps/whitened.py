"""The step-time pm.Model handed to nutpie in coordinates in which its posterior is nearly a standard normal.

Chains need no warm-up for their metric then: on the packaged H100 grids the same effective sample takes a fifth of the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.steps.laplace import Laplace

Array = NDArray[np.float64]
Density = Callable[[Array], tuple[float, Array]]
COMPILED = (
    500  # cells from which on compiling the pm.Model pays; below, the same density is worked out on numbers (a test holds them equal)
)


@dataclass(frozen=True)
class Whitened:
    """A model with its approximate posterior: unknowns = mode + root @ place. Linear, so densities differ by a constant."""

    around: Laplace

    def compiled(self, mode: str) -> Density:
        """Log density and gradient of the pm.Model by unknowns. Chains share the function: they must run one after another."""
        density = self.around.model.graph().logp_dlogp_function(ravel_inputs=True, mode=mode)
        density.set_extra_values({})
        found: Density = density
        return found

    def uncompiled(self, unknowns: Array) -> tuple[float, Array]:
        """The same up to a constant, without a compiler."""
        model = self.around.model
        here = model.misses(unknowns)
        return model.log_likelihood(*here[:2]) - float(unknowns @ unknowns) / 2, model.gradient(*here) - unknowns

    def for_nutpie(self) -> Any:
        """The log density and gradient at places."""
        from nutpie.compiled_pyfunc import from_pyfunc

        mode, root, size = self.around.mode, np.linalg.cholesky(self.around.covariance), self.around.model.size
        density = self.compiled("NUMBA") if len(self.around.model.cells) >= COMPILED else self.uncompiled

        def placed(place: Array) -> tuple[float, Array]:
            value, gradient = density(mode + root @ place)
            return float(value), np.asarray(gradient) @ root

        return from_pyfunc(
            size,
            lambda: placed,
            lambda *_seeds: lambda place: {"score": mode + root @ place},
            [np.dtype("float64")],
            [(size,)],
            ["score"],
            make_initial_point_fn=lambda seed: np.random.default_rng(seed).uniform(-1.0, 1.0, size),
        )
