"""Where an answer's rates come from: a posterior where one exists for the GPU, declared priors otherwise. Never another GPU's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sim import posterior
from sim.precision import Precision
from sim.rates import RateDraws
from sim.specs.gpu import GpuSpec


def rates_for(gpu: GpuSpec, precision: Precision, *, path: Path | None = None, draws: int = 1000, seed: int = 0, tp: int = 1) -> RateDraws:
    """Draws of the rates of one GPU at one precision, for answers over `tp` of them, with their basis; from the posterior file at `path`
    where one is given.
    """
    return posterior.rates_for(gpu, precision, path=path, draws=draws, seed=seed, tp=tp)


def tensor_parallel_notes(tp: int, basis: Mapping[str, str]) -> list[str]:
    """What an answer for `tp` GPUs must say of its rates, whose `basis` tells where each comes from; empty for one GPU."""
    if tp == 1:
        return []
    learnt = basis["spread_layer_s"].startswith("learnt")
    source = "learnt from one model over two of these GPUs" if learnt else "a prior " + basis["spread_layer_s"].partition("ms, ")[2]
    more = "" if tp == 2 else f" It is taken to be the same for {tp} as for two."
    wide = "" if learnt else ", with a wide interval"
    return [f"what the engine's host takes to drive several GPUs is {source}{wide}; no server over several was measured.{more}"]
