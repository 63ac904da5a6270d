"""Rates of a deployment, and what of it lies outside what was measured. Never another GPU's numbers."""

from __future__ import annotations

from pathlib import Path

from sim import posterior as files
from sim.cost.rates import RateDraws
from sim.deployment import Deployment
from sim.precision import arithmetic_note
from sim.provenance import outside_measured


def load_rates(deployment: Deployment, *, posterior: str | Path | None = None, draws: int = 1000, seed: int = 0) -> RateDraws:
    """Draws of a deployment's rates: from the posterior file given, else the GPU's packaged one, else the population's, else priors.

    Raises SimctlError for a file that is no posterior or of another GPU, OSError when it cannot be read.
    """
    return files.rates_for(deployment.gpu, deployment.precision, path=posterior, draws=draws, seed=seed, tp=deployment.tp)


def scope_notes(deployment: Deployment, rates: RateDraws) -> list[str]:
    """What an answer must say of its rates: which part of the deployment nobody measured; empty where all of it was."""
    d = deployment
    engine = d.limits.engine if rates.source.engines else ""
    outside = list(outside_measured(rates.source, d.gpu.name, d.precision.weights, d.tp, engine))
    notes = [f"outside what was measured: {'; '.join(outside)}."] if outside else []
    if d.gpu.source.startswith("AMD"):
        notes.append("no number behind these rates was measured on an AMD GPU.")
    if said := arithmetic_note(d.precision, d.gpu):
        notes.append(said)
    if d.tp > 1:
        learnt = "comm_latency_s" in rates.sources and rates.sources["comm_latency_s"].measured
        source = "learnt from one model over two of these GPUs" if learnt else "a prior from one model over two H200s, with a wide interval"
        more = "" if d.tp == 2 else f" It is taken to be the same for {d.tp} as for two."
        notes.append(f"tensor-parallel host overhead is {source}; no server over several GPUs was measured.{more}")
    return notes
