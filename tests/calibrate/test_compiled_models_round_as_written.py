"""The last digits of a density do not hang on what the compiler made of it, nor on whether it was compiled now or read from a cache."""

import numpy as np

from calibrate import backend
from calibrate.sampling import Compiled, Graph

FACTOR = 1.1
TERMS = np.random.default_rng(1).uniform(1.0, 2.0, 64)


def test_products_are_rounded_before_they_are_added() -> None:
    """x * term less the same product rounded is zero, unless both are fused into one rounding, as PyTensor lets compilers do by itself."""
    pm = backend.pymc()
    with pm.Model() as model:
        x = pm.Flat("x")
        pm.Potential("left", (x * pm.Data("terms", TERMS) - pm.Data("products", FACTOR * TERMS)).sum())
    density, _ = Compiled(Graph(model))._ready.logp_func(np.array([FACTOR]))
    assert density == 0.0
