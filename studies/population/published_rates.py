"""Posteriors from published numbers alone: A10 (KV cache in host RAM), GB10 under vLLM and under llama.cpp (batched bench).

The population's rates are the prior. Each published number is an iteration priced by the formula, with the error that its printed digits
leave. Rates that no number shows keep their prior.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from calibrate.sampling import Diagnostics, Settings, judge
from calibrate.steps.fit import sampled
from calibrate.steps.gpu_priors import population_priors
from calibrate.steps.iterations import StepCells, make_cells
from calibrate.steps.laplace import laplace
from calibrate.steps.random_rates import prior_draws
from calibrate.steps.step_model import NORMAL, step_model
from sim.cost.batch import decode_batch, mixed_batch
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import UNITS, Rates
from sim.cost.step_time import step_time_s
from sim.cost.work import Work, iteration_work
from sim.rates.priors import Prior
from sim.specs.attention_policy import blocks, dense
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from studies.reference_tables import Row, table

Array = NDArray[np.float64]
UNSTATED = 0.03  # log sd of a number whose repeats are not stated
ACCEPT = 0.99  # two numbers about seven rates: what they allow is a thin shell
UBATCH = 512  # tokens that llama.cpp computes together
# (model, weights, prompt, generated, tokens/s), published by the vendor. Left out: gpt-oss-120b at 57 to 60, more than a GB10's datasheet
# bandwidth reads with its dense layers in bf16.
GB10_STREAMS = (
    ("Llama-3.1-8B", "nvfp4", 2048, 128, 38.65),
    ("Llama-3.1-8B", "fp8", 2048, 128, 20.5),
)
GB10_READS, GB10_READS_SD = 232.5e9, 0.03  # bytes/s of published read kernels: 231 to 234e9
GB10_PROMPT = 128.0  # tokens of the true decode's prompts
BUILDS = 0.10  # log sd of one build's decode around another's
GB10_MODELS = {"moe": "Qwen3.6-35B-A3B", "dense": "Qwen3.6-27B"}
# Runs of the released build; the others are experiments on one kernel.
GB10_VARIANTS = ("default", "fp4_mmq_default", "gdn_m5_base", "gdn_m5_baseline")


@dataclass(frozen=True)
class Published:
    """Published figures of one GPU: iterations with their times, at which precision, and from where."""

    gpu: str
    cells: StepCells
    precision: Precision
    engine: str
    source: str
    reads: tuple[tuple[str, float, float], ...] = ()  # (rate, value, log sd) that kernels of others show


@dataclass(frozen=True)
class Learnt:
    """Draws [draw] of every rate, the source of each, the diagnostics, and how far the numbers lie from the formula [draw]."""

    rates: Mapping[str, Array]
    sources: Mapping[str, Provenance]
    diagnostics: Diagnostics
    error: Array


def a10() -> Published:
    """Qwen2.5-7B at 1M tokens with its cache in host RAM: blocks of 128 with k = 32, and dense (brl07/tiering.csv, tok/s)."""
    model, precision, context = get_model("Qwen2.5-7B"), Precision(), float(2**20)
    rows = {row["metric"]: row["value"] for row in table("brl07", "tiering")}
    works, seconds, errors = [], [], []
    for metric, policy in (("tiered_sparse_decode", blocks(32, "host")), ("dense_from_host_floor", dense("host"))):
        works.append(iteration_work(model, decode_batch(model, 1.0, context, policy), precision, policy))
        seconds.append(1 / float(rows[metric]))
        errors.append(_rounding(rows[metric]))
    cells = make_cells(works, seconds, kind=["decode"] * 2, model=[model.name] * 2, cell=["k=32", "dense"], repeat_sd=errors)
    return Published("A10", cells, precision, "published stack", "brl07/tiering.csv")


def gb10() -> Published:
    """Decode of single streams by its vendor (GB10_STREAMS), and vLLM's true decode of 256 sequences (gb10/decode_difference_method.csv).
    Memory is read at GB10_READS by kernels that do nothing else.
    """
    row = next(r for r in table("gb10", "decode_difference_method") if r["engine"] == "vllm" and r["model"] == "moe")
    batch, context = float(row["npl_batch"]), GB10_PROMPT + (float(row["ntg_short"]) + float(row["ntg_long"])) / 2
    seen = [(name, dtype, 1.0, prompt + generated / 2, tokens) for name, dtype, prompt, generated, tokens in GB10_STREAMS]
    seen.append((GB10_MODELS["moe"], "nvfp4", batch, context, float(row["true_decode_tps"])))
    works = [iteration_work(m := get_model(name), decode_batch(m, n, c), Precision(dtype)) for name, dtype, n, c, _ in seen]
    cells = make_cells(
        works,
        [n / tokens for _, _, n, _, tokens in seen],
        kind=["decode"] * len(seen),
        model=[name for name, *_ in seen],
        cell=[f"{n:g}x{c:g} {dtype}" for _, dtype, n, c, _ in seen],
        repeat_sd=[BUILDS] * len(seen),
    )
    reads = tuple((rate, GB10_READS, GB10_READS_SD) for rate in ("beta", "beta_expert", "beta_kv"))
    source = "single streams by its vendor, gb10/decode_difference_method.csv"
    return Published("GB10", cells, Precision("nvfp4"), "vllm", source, reads)


def gb10_llamacpp() -> Published:
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
    works, seconds, errors = [], [], []
    for (kind, name, prompt, batch), rates in seen.items():
        model = get_model(GB10_MODELS[name])
        if kind == "decode":
            shape = decode_batch(model, batch, prompt + lengths[prompt, batch] / 2)
        else:  # the mean chunk of a prompt: as many end before it as after
            tokens = min(prompt, float(UBATCH))
            shape = mixed_batch(model, [], [(tokens, (prompt + tokens) / 2, False)] * round(UBATCH / tokens))
        # the bench samples no token: it has none of a server's cost per sequence
        works.append(iteration_work(model, shape._replace(padding=0.0), precision)._replace(sequences=0.0))
        seconds.append((batch if kind == "decode" else UBATCH) / float(np.median(rates)))
        errors.append(float(np.std(np.log(rates)) / np.sqrt(len(rates))))
    kinds, names, prompts, batches = zip(*seen, strict=True)
    labels = [f"{b:g}x{p:g}" for b, p in zip(batches, prompts, strict=True)]
    cells = make_cells(works, seconds, kind=kinds, model=[GB10_MODELS[n] for n in names], cell=labels, repeat_sd=errors)
    return Published("GB10", cells, precision, "llamacpp", "gb10/batched_bench.csv")


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


PRINTED = 0.03  # log sd at least: published numbers are rounded, and of an engine with kernels of its own


def learn_published(known: Published, found: Mapping[str, Array], settings: Settings, sigma: Array) -> Learnt:
    """Sample the rates that the published numbers show, from the population's rates `found`; others are drawn from their priors.

    So few numbers cannot tell the formula's error: that is taken from the GPUs measured (`sigma` [draw, kind], its median in the sampled
    model). Learnt jointly, two numbers leave a choice between a rate far from its prior and a formula wrong by half, between which no
    chain passes. For the same reason errors are normal: a long tail would let a number be disbelieved.
    """
    chosen = priors_of(known, found)
    model = step_model(known.cells, chosen, known_sigma=np.maximum(np.median(sigma, axis=0), PRINTED), nu=NORMAL)
    scores, diverging = sampled(laplace(model), replace(settings, target_accept=ACCEPT))
    rates = model.rates(scores.reshape(-1, model.size))
    rest = prior_draws(chosen, scores.shape[0] * scores.shape[1], np.random.default_rng([settings.seed, 1]))
    values = {name: np.asarray(getattr(replace(rest, **rates), name), dtype=float) for name in UNITS}
    own = Provenance(Origin.POPULATION, f"learnt from {len(known.cells)} published numbers ({known.source})", known.gpu)
    sources = {name: own if name in model.free else chosen[name].provenance for name in UNITS}
    draws = xr.Dataset({"score": (("chain", "draw", "unknown"), scores)})
    point = Rates(**{name: float(np.median(draws)) for name, draws in values.items()})
    off = np.log(step_time_s(Work(*known.cells.work.T), point, np) / known.cells.step_s)
    error = np.full(len(rest.beta), np.sqrt(np.mean(np.square(off))))
    return Learnt(values, sources, judge(draws, int(diverging.sum())), error)


def priors_of(known: Published, found: Mapping[str, Array]) -> dict[str, Prior]:
    """Priors of the rates: the population's, with what read kernels of others show."""
    chosen = population_priors(found, get_gpu(known.gpu), known.precision)
    for rate, value, sd in known.reads:
        chosen[rate] = replace(
            chosen[rate], median=value, sigma=sd, basis=f"published read kernels of {known.gpu}", origin=Origin.PUBLISHED
        )
    return chosen
