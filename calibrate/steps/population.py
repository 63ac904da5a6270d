"""What is known of a GPU's rates before its own measurements are looked at."""

from __future__ import annotations

from dataclasses import replace

from sim.precision import Precision
from sim.priors import Prior, priors
from sim.specs.gpu import GpuSpec

# The declared c0 stands for one published stack; engines differ by more than it allows.
WIDER = {"c0_s": (2.0e-3, 0.8), "c_seq_s": (16e-6, 0.8), "c_prefill_s": (1.0e-3, 1.0)}


def calibration_priors(gpu: GpuSpec, precision: Precision) -> dict[str, Prior]:
    """Datasheet x efficiency, without the numbers published for this very GPU, and weak host costs."""
    chosen = priors(gpu, precision, published=False)
    for name, (median, sigma) in WIDER.items():
        chosen[name] = replace(chosen[name], median=median, sigma=sigma, basis=f"weak prior, {median:g} s")
    return chosen
