"""The PyMC step-time model handed to nutpie in coordinates in which its posterior is nearly a standard normal."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.steps.laplace import Laplace

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Whitened:
    """A model with its approximate posterior: unknowns = mode + root @ place. Linear, so densities differ by a constant."""

    around: Laplace

    def for_nutpie(self) -> Any:
        """The log density and gradient of the pm.Model. Its graph is small and is run as it stands: compiling it would take longer."""
        from nutpie.compiled_pyfunc import from_pyfunc

        mode, root, size = self.around.mode, np.linalg.cholesky(self.around.covariance), self.around.model.size
        density = self.around.model.for_pymc().logp_dlogp_function(ravel_inputs=True, mode="FAST_COMPILE")
        density.set_extra_values({})

        def at_places() -> Any:
            own = copy(density)
            own._pytensor_function = density._pytensor_function.copy()  # chains run side by side, and a function keeps what it works out

            def placed(place: Array) -> tuple[float, Array]:
                value, gradient = own(mode + root @ place)
                return float(value), gradient @ root

            return placed

        return from_pyfunc(
            size,
            at_places,
            lambda *_seeds: lambda place: {"score": mode + root @ place},
            [np.dtype("float64")],
            [(size,)],
            ["score"],
            make_initial_point_fn=lambda seed: np.random.default_rng(seed).uniform(-1.0, 1.0, size),
        )
