"""Where an answer's rates come from: a posterior where one exists for the GPU, declared priors otherwise. Never another GPU's numbers."""

from __future__ import annotations

from pathlib import Path

from sim import posterior
from sim.precision import Precision
from sim.rates import RateDraws
from sim.specs.gpu import GpuSpec


def rates_for(gpu: GpuSpec, precision: Precision, *, path: Path | None = None, draws: int = 1000, seed: int = 0) -> RateDraws:
    """Draws of the rates of one GPU at one precision, with their basis; from the posterior file at `path` where one is given."""
    return posterior.rates_for(gpu, precision, path=path, draws=draws, seed=seed)
