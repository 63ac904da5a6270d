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


def tensor_parallel_notes(tp: int) -> list[str]:
    """What an answer for `tp` GPUs must say of its rates, none of which was learnt over several GPUs; empty for one."""
    if tp == 1:
        return []
    return [
        f"a step over {tp} GPUs is priced from one GPU's rates and the all-reduce; what the engine's host takes to drive several is not in "
        "it. The grid measured over two was slower than that, by more than the intervals hold (docs/calibrate.md)."
    ]
