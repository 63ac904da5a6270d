"""Posteriors of GPUs known through a few published numbers alone: A10 (a cache in host RAM) and GB10 (llama.cpp's batched bench).

The population's rates for the card are the prior; each published number is an iteration priced by the formula, with the error that its
printed digits leave. Rates that no number touches keep what the population or the datasheet says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.population.model import Population
from calibrate.reference import Row, table
from calibrate.sampling import Compiled, Diagnostics, Settings, diagnose
from calibrate.steps.cells import StepCells, make_cells
from calibrate.steps.model import NORMAL, free_rates, step_model
from calibrate.steps.rates import prior_draws
from sim.bill import decode_shape, iteration_bill, mixed_shape
from sim.policy import blocks, dense
from sim.precision import Precision
from sim.priors import Prior, priors
from sim.rates import UNITS
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model

Array = NDArray[np.float64]
ENGINES_MEASURED = ("bf16", "fp16")
OTHER_PRODUCTS, SMOOTH_SPREAD, UNSTATED = 1.0, 0.1, 0.03
ACCEPT = 0.999  # two numbers about a dozen rates: what they allow is a thin shell, where steps for 0.99 diverged with some seeds
UBATCH = 512  # tokens that llama.cpp computes together
GB10_MODELS = {"moe": "Qwen3.6-35B-A3B", "dense": "Qwen3.6-27B"}
# Runs of the released build; the others are experiments on one kernel.
GB10_VARIANTS = ("default", "fp4_mmq_default", "gdn_m5_base", "gdn_m5_baseline")


@dataclass(frozen=True)
class Published:
    """What is published of one GPU: iterations with their times, at which precision, and from where."""

    gpu: str
    cells: StepCells
    precision: Precision
    engine: str
    source: str


@dataclass(frozen=True)
class Learnt:
    """Draws [draw] of every rate and of the model error [draw, kind], which rates the numbers touched, and the diagnostics."""

    rates: Mapping[str, Array]
    sigma: Array
    learnt: tuple[str, ...]
    diagnostics: Diagnostics


def published() -> list[Published]:
    """All GPUs of which numbers are published and nothing was measured."""
    return [a10(), gb10()]


def a10() -> Published:
    """Qwen2.5-7B at 1M tokens with its cache in host RAM: blocks of 128 with k = 32, and dense (brl07/tiering.csv, tok/s)."""
    model, precision, context = get_model("Qwen2.5-7B"), Precision(), float(2**20)
    rows = {row["metric"]: row["value"] for row in table("brl07", "tiering")}
    bills, seconds, errors = [], [], []
    for metric, policy in (("tiered_sparse_decode", blocks(32, "host")), ("dense_from_host_floor", dense("host"))):
        bills.append(iteration_bill(model, decode_shape(model, 1.0, context, policy), precision, policy))
        seconds.append(1 / float(rows[metric]))
        errors.append(_rounding(rows[metric]))
    cells = make_cells(bills, seconds, kind=["decode"] * 2, model=[model.name] * 2, cell=["k=32", "dense"], repeat_sd=errors)
    return Published("A10", cells, precision, "published stack", "brl07/tiering.csv")


def gb10() -> Published:
    """Prefill and decode rates of llama.cpp's batched bench (gb10/batched_bench.csv, tok/s), medians over repeats of the same run."""
    precision = Precision("nvfp4", "bf16")
    seen: dict[tuple[str, str, float, float], list[float]] = defaultdict(list)
    for row in table("gb10", "batched_bench"):
        if row["engine"] != "llama.cpp-paged" or row["variant"] not in GB10_VARIANTS:
            continue
        for kind, column in (("prefill", "s_pp_tps"), ("decode", "s_tg_tps")):
            if row[column]:
                seen[kind, row["model"], float(row["npp_tokens"]), float(row["npl_batch"])].append(float(row[column]))
    lengths = _generated(table("gb10", "batched_bench"))
    bills, seconds, errors = [], [], []
    for (kind, name, prompt, batch), rates in seen.items():
        model = get_model(GB10_MODELS[name])
        if kind == "decode":
            shape = decode_shape(model, batch, prompt + lengths[prompt, batch] / 2)
        else:  # the mean chunk of a prompt: as many end before it as after
            tokens = min(prompt, float(UBATCH))
            shape = mixed_shape(model, [], [(tokens, (prompt + tokens) / 2, False)] * round(UBATCH / tokens))
        # llama.cpp's kernels deal keys out in their own way (sim.dealing), of which these few numbers tell nothing
        bills.append(iteration_bill(model, replace(shape, padding=0.0), precision)._replace(idle_kv_bytes=0.0))
        seconds.append((batch if kind == "decode" else UBATCH) / float(np.median(rates)))
        errors.append(float(np.std(np.log(rates)) / np.sqrt(len(rates))))
    kinds, names, prompts, batches = zip(*seen, strict=True)
    labels = [f"{b:g}x{p:g}" for b, p in zip(batches, prompts, strict=True)]
    cells = make_cells(bills, seconds, kind=kinds, model=[GB10_MODELS[n] for n in names], cell=labels, repeat_sd=errors)
    return Published("GB10", cells, precision, "llama.cpp", "gb10/batched_bench.csv")


def _generated(rows: Sequence[Row]) -> dict[tuple[float, float], float]:
    """Tokens generated per sequence by (prompt, batch): the mean over runs."""
    found = defaultdict(list)
    for row in rows:
        found[float(row["npp_tokens"]), float(row["npl_batch"])].append(float(row["ntg_tokens"]))
    return {key: float(np.mean(values)) for key, values in found.items()}


def _rounding(printed: str) -> float:
    """Standard deviation of the logarithm of a number printed to so many digits, not below that of an unstated repeat."""
    step = 10.0 ** -len(printed.partition(".")[2])
    return max(float(step / np.sqrt(12) / float(printed)), UNSTATED)


def population_priors(population: Population, gpu: str, precision: Precision) -> dict[str, Prior]:
    """The prior of every rate of a GPU: the population's for a card never measured where it has one, else the declared."""
    declared = priors(get_gpu(gpu), precision, published=False)
    chosen = dict(declared)
    for name, draws in population.rates(gpu).items():
        upper = declared[name].upper
        peak = upper if np.isfinite(upper) else 1.0
        middle = min(float(np.median(draws)), 0.98 if np.isfinite(upper) else np.inf)
        spread = float(np.std(np.log(draws)))
        if precision.weights not in ENGINES_MEASURED:
            # products in a dtype that no measured engine ran: the share of the peak is anyone's guess, the overlap is not
            spread = OTHER_PRODUCTS if name in ("linear_flops_per_s", "expert_flops_per_s") else spread
        spread = min(spread, SMOOTH_SPREAD) if name == "smooth_p" else spread
        chosen[name] = Prior(middle * peak, spread, "hierarchy over GPUs", upper)
    return chosen


def learn_published(known: Published, population: Population, settings: Settings, sigma: Array) -> Learnt:
    """Sample the rates that the published numbers touch; the others are drawn from their priors.

    So few numbers cannot tell how far the formula is off: that is taken from the GPUs measured, `sigma` [draw, kind], its median in what is
    sampled. Learnt with it, two numbers leave a choice between a rate far from its prior and a formula wrong by half, between which
    no chain passes. For the same reason their errors are taken as normal: a long tail would let a number be disbelieved.
    """
    chosen = population_priors(population, known.gpu, known.precision)
    model = step_model(known.cells, chosen, sigma=np.median(sigma, axis=0), nu=NORMAL)
    idata: Any = Compiled(model, settings.sampler).sample(replace(settings, target_accept=ACCEPT))
    draws = idata.posterior.stack(sample=("chain", "draw"))
    touched = tuple(free_rates(known.cells))
    rest = prior_draws(chosen, draws.sizes["sample"], np.random.default_rng([settings.seed, 1]))
    values = {name: np.asarray(getattr(rest, name), dtype=float) for name in UNITS}
    values |= {name: np.asarray(draws[name].values, dtype=float) for name in touched}
    return Learnt(values, sigma[: draws.sizes["sample"]], touched, diagnose(idata))
