"""Headings of answers: the model's name, and the evidence behind the rates of its GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sim.cost.provenance import Origin
from sim.cost.rates import RateDraws
from sim.rates import llamacpp_kernels
from sim.specs.lookup import given_path, key
from sim.specs.model import ModelSpec
from sim.specs.precision import Precision

if TYPE_CHECKING:
    from sim import Deployment

EXPERT_FORMATS = {4.25: "mxfp4"}
ELSEWHERE = {
    Origin.POPULATION: "was not measured here; rates from its datasheet, published numbers and other GPUs",
    Origin.PUBLISHED: "was not measured here; rates from published benches and servers of this engine, and other GPUs",
    Origin.PRIOR: "was not measured here; rates from its datasheet",
}


def model_title(name: str) -> str:
    """The model's name, marked where the command line gave none and the default was taken, or named another of the same shape."""
    context = click.get_current_context(silent=True)
    of_file = context is not None and bool(context.params.get("file"))  # a scenario, which gives its own
    if context is None or of_file:
        return name
    if context.get_parameter_source("model") is click.core.ParameterSource.DEFAULT:
        return f"{name} (no --model given)"
    asked = context.params.get("model")
    if not isinstance(asked, str) or given_path(asked, (".json",)) or key(asked.rsplit("/", 1)[-1]).startswith(key(name)):
        return name
    return f"{asked.rsplit('/', 1)[-1]} ({name}'s shape)"


def grounds(d: Deployment, rates: RateDraws) -> str:
    """Evidence on a deployment's GPU and engine, as the beginning of a sentence."""
    gpu, source = d.gpu.name, rates.source
    if source.measured and source.gpu and source.gpu != gpu:
        said = f"{gpu} was not measured here; rates of the measured {source.gpu}, scaled by datasheets"
    else:
        measured = f"was measured here with {source.engines[0]}" if source.engines else "has rates as given"
        said = f"{gpu} {ELSEWHERE.get(source.origin, measured)}"
    if llamacpp_kernels.stands_in(d, rates):
        own = "llama.cpp's kernels and sampling by a build of early 2025 on an H100"
        return f"{gpu}: {own}, the rest by {source.engines[0]}" if source.engines else f"{said}; {own}"
    other = source.engines and not any(engine.split()[0] == d.limits.engine for engine in source.engines)
    return f"{said}; {d.limits.engine} is taken to step alike" if other else said


def dtype_words(model: ModelSpec, precision: Precision) -> str:
    """Dtype of the weights as served, with that of experts where the checkpoint fixes it."""
    if model.expert_bits is None or precision.weights not in ("bf16", "fp16"):
        return precision.weights
    return f"{EXPERT_FORMATS.get(model.expert_bits, f'{model.expert_bits:g}-bit')} experts, the rest {precision.weights}"
