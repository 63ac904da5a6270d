"""Rates of a deployment, and what of it lies outside what was measured. Never another GPU's numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sim.cost.rates import RateDraws
from sim.rates import posterior as files
from sim.rates.provenance import outside_measured
from sim.specs.precision import arithmetic_note, checkpoint_notes
from sim.study.deployment import Deployment

# Log sd, between deployments, of how far step times lie from the formula where this part of a deployment was not measured. Models: the
# mean errors of four models left out one at a time on an H100 and an H200 have an rms of 2.5 %. The others are declared, around what was
# seen of two GPUs (a left-out TP degree: 4.4 %), of two models served in fp8 (4 %), and of other engines by others.
OUTSIDE_SD = {"model": 0.025, "dtype": 0.05, "tp": 0.06, "engine": 0.05}
FAMILY_SD = 0.04  # more of a model none of whose family was measured: Gemma 3 and Phi-4 on an H200 were 4 and 3 % off


def load_rates(deployment: Deployment, *, posterior: str | Path | None = None, draws: int = 1000, seed: int = 0) -> RateDraws:
    """Draws of a deployment's rates: from the posterior file given, else the GPU's packaged one, else the population's, else priors.

    Where a part of the deployment was not measured on that GPU, the draws are wider by what leaving such a part out has shown.
    Raises SimctlError for a file that is no posterior or of another GPU, OSError when it cannot be read.
    """
    known = files.rates_for(deployment.gpu, deployment.precision, path=posterior, draws=draws, seed=seed, tp=deployment.tp)
    return widened(known, deployment, seed)


def widened(rates: RateDraws, deployment: Deployment, seed: int = 0) -> RateDraws:
    """The draws moved as wholes by what is not known of a deployment outside what was measured of its GPU.

    On a GPU nobody measured, the hierarchy over GPUs is that wide already.
    """
    if not rates.source.measured:
        return rates
    outside = set(_outside(deployment, rates)) & set(OUTSIDE_SD)
    variance = sum(OUTSIDE_SD[part] ** 2 for part in outside)
    if "model" in outside and not family_known(deployment.model.name, rates.source.models):
        variance += FAMILY_SD**2
    return files.moved(rates, files.model_errors(np.full(rates.count, variance**0.5), seed + 1)) if variance else rates


def family_known(model: str, models: Iterable[str]) -> bool:
    """Whether one of these models is of this one's family."""
    return _family(model) in map(_family, models)


def _family(name: str) -> str:
    """The maker's word at the front of a model's name: Qwen, Llama, Gemma."""
    return re.split(r"[^a-z]", name.lower(), maxsplit=1)[0]


def _outside(d: Deployment, rates: RateDraws) -> dict[str, str]:
    engine = d.limits.engine if rates.source.engines else ""
    return outside_measured(rates.source, d.gpu.name, d.precision.weights, d.tp, engine, d.model.name)


def scope_notes(deployment: Deployment, rates: RateDraws) -> list[str]:
    """What an answer must say of its rates: which part of the deployment nobody measured; empty where all of it was."""
    d = deployment
    outside = _outside(d, rates).values()
    notes = [f"outside what was measured: {'; '.join(outside)}."] if outside else []
    notes += checkpoint_notes(d.model, d.precision)
    if d.gpu.source.startswith("AMD"):
        notes.append("no number behind these rates was measured on an AMD GPU.")
    if said := arithmetic_note(d.precision, d.gpu):
        notes.append(said)
    if d.tp > 1:
        learnt = rates.sources["comm_latency_s"].measured
        source = "learnt from one model over two of these GPUs" if learnt else rates.sources["comm_latency_s"].text()
        more = "three models were served over two H100s" if d.tp == 2 else f"nothing was measured over {d.tp}"
        notes.append(f"the cost of all-reduces: {source}; {more}.")
    return notes
