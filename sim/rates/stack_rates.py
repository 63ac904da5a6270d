"""Rates of a decode stack on a GPU: learnt there, transferred from GPUs where its steps were measured, or published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import RateDraws, Rates
from sim.errors import UsageError
from sim.quantiles import median
from sim.rates import posterior as files
from sim.rates.priors import Prior, a10_gather_s, drawn, prior_rates, priors
from sim.rates.source import RateSource
from sim.specs.decode_stack import ENGINE, HARNESS, KERNELS, SERVED_KERNELS, beyond_kernels, stack_named
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.precision import Precision

if TYPE_CHECKING:
    from sim.study.deployment import Deployment

MEASURED = ("H100", "H200")  # GPUs with packaged steps of our kernels
LONG_CONTEXT = 2**16  # tokens: from here on a question is one of long contexts, and is answered of the stack that has sparse attention
# Before any step was seen. Shares of datasheet peaks, and seconds: (median, log sd). A kernel of a captured graph takes about 2 us; a
# selection is two kernels more, which overlap with others.
SHARES = {"beta": (0.90, 0.06), "beta_kv": (0.92, 0.06), "link_bytes_per_s": (0.80, 0.10)}
SECONDS = {
    "kernel_s": (2.3e-6, 0.35),
    "c0_s": (1.0e-5, 0.5),
    "c1_s": (2.0e-6, 0.2),
    "c1_unit_s": (0.5e-6, 0.8),
    "gather_s": (3.0e-6, 0.8),
}
# Further log sd of a GPU that is of another chip than any measured one: shares of a datasheet, and times of kernels that latency bounds.
OTHER_SHARE_SD, OTHER_SECONDS_SD = 0.06, 0.40
# Scale of the log-t of a whole step on another machine with the same GPU: four H100s and four H200s, each by rates of the others of its
# card, lie 1.1 % off (rms), one of them 2.6; the likeliest scale is 0.8 %. And on a GPU where no step was measured: declared.
MACHINE_SD, ELSEWHERE_SD = 0.008, 0.03
LAUNCHES = 3  # in an engine, of a layer that selects, besides those that c1 counts: summary, gather, merge
HARNESS_GATHER_SD = 0.5  # log sd of the published host-side gather on another machine than the A10's


def stack_priors(gpu: GpuSpec, precision: Precision) -> dict[str, Prior]:
    """Declared priors of the kernels' rates, before any of their steps was measured."""
    chosen = priors(gpu, precision, published=False)
    peaks = {"link_bytes_per_s": gpu.host_link_bandwidth}
    for name, (share, sigma) in SHARES.items():
        peak = peaks.get(name, gpu.memory_bandwidth)
        chosen[name] = Prior(share * peak, sigma, f"datasheet x {share:g}, by kernels", upper=peak)
    for name, (seconds, sigma) in SECONDS.items():
        chosen[name] = Prior(seconds, sigma, f"prior of a captured graph, {1e6 * seconds:g} us")
    return chosen


def transferred_priors(gpu: GpuSpec, precision: Precision, measured: Sequence[str] = MEASURED) -> tuple[dict[str, Prior], list[str]]:
    """(priors of the kernels' rates on a GPU from those learnt on others, names of these): shares of datasheet peaks, and seconds as they
    are, with what the GPUs differ by and what another chip may. The declared ones where none was measured.
    """
    chosen = stack_priors(gpu, precision)
    others = [get_gpu(name) for name in measured if name != gpu.name]
    cards = [card for card in others if card.name == gpu.sibling_of] or others
    found = [(card, files.rates_from_file(path, card, precision, model_error=False)) for card in cards if (path := _file(card))]
    if not found:
        return chosen, []
    origin = Provenance(Origin.POPULATION, f"transferred from {' and '.join(card.name for card, _ in found)}, kernels")
    same_chip = gpu.sibling_of in [card.name for card, _ in found]
    declared = [stack_priors(card, precision) for card, _ in found]
    for name in (*SHARES, *SECONDS):
        peaks = [each[name].upper if name in SHARES else 1.0 for each in declared]
        logs = [np.log(getattr(rates.draws, name) / peak) for (_, rates), peak in zip(found, peaks, strict=True)]
        centre = float(np.mean([median(each) for each in logs]))
        between = float(np.std([median(each) for each in logs], ddof=1)) if len(logs) > 1 else 0.0
        other = 0.0 if same_chip else OTHER_SHARE_SD if name in SHARES else OTHER_SECONDS_SD
        sigma = math.hypot(between, float(np.mean([each.std() for each in logs])), files.SIBLING_SD if same_chip else 0.0, other)
        upper = chosen[name].upper
        middle = math.exp(centre) * (upper if name in SHARES else 1.0)
        chosen[name] = Prior(middle, sigma, origin.evidence, upper, origin.origin)
    return chosen, [card.name for card, _ in found]


def stack_rates(name: str, deployment: Deployment, source: RateSource, draws: int) -> RateDraws:
    """Draws of the rates of a deployment's decode steps on a stack. UsageError where the stack does not run it so."""
    stack, d = stack_named(name), deployment
    if stack.name == ENGINE:
        rates, _ = source.of(d, draws)
        return rates
    if why := beyond(d, name):
        raise UsageError(why)
    if stack.in_engine:
        return _in_engine(d, draws, source)
    if not source.served:
        raise UsageError(f"stack {name}: a captured graph has no server, --in-process is of {ENGINE}")
    if stack.name == HARNESS:
        return replace(_harness(d, draws, source.seed), stack=name)
    path = Path(source.posterior) if source.posterior is not None else _file(d.gpu)
    if path is not None:
        known = files.rates_from_file(path, d.gpu, d.precision, draws=draws, seed=source.seed)
        if known.stack != name:
            raise UsageError(f"{path}: rates of {known.stack}, not of {name}")
        return files.moved(known, files.model_errors(np.full(draws, MACHINE_SD), source.seed + 3))
    chosen, cards = transferred_priors(d.gpu, d.precision)
    evidence = f"no step was measured on {d.gpu.name}: its datasheet, and rates learnt on {' and '.join(cards) or 'no GPU'}"
    known = replace(drawn(chosen, Provenance(Origin.POPULATION, evidence), draws, source.seed), stack=name)
    return files.moved(known, files.model_errors(np.full(draws, ELSEWHERE_SD), source.seed + 3))


def beyond(d: Deployment, stack: str) -> str:
    """Why a stack does not decode a deployment, in one line; empty where it does."""
    if stack_named(stack).name == ENGINE:
        return ""
    why = beyond_kernels(d.model, d.gpu, d.precision, d.tp, d.parallel, d.limits.lora is not None)
    if stack_named(stack).in_engine and d.gpu.name not in MEASURED:
        why = why or f"in vLLM they ran on {' and '.join(MEASURED)}"
    return f"no stack {stack} for {d.model.name} on {d.gpu.name}: {why}" if why else ""


def because(d: Deployment) -> str:
    """Why the kernels are not taken for a deployment, as the end of a sentence; empty where they would be."""
    why = beyond_kernels(d.model, d.gpu, d.precision, d.tp, d.parallel, d.limits.lora is not None)
    return f"; the kernels' stack: {why}" if why else ""


def default_stack(d: Deployment, context: int, sparse: bool = False, served: bool = True) -> str:
    """The stack that a question is answered of: the kernels where it is of sparse attention or of long contexts and they run it, else the
    engine.
    """
    asked = served and d.limits.engine == ENGINE and (sparse or context >= LONG_CONTEXT)
    return KERNELS if asked and not beyond(d, KERNELS) else ENGINE


def _file(gpu: GpuSpec) -> Path | None:
    return files.stack_posterior(gpu, KERNELS)


def _in_engine(d: Deployment, draws: int, source: RateSource) -> RateDraws:
    """The engine's rates, with what a selection costs the kernels, and LAUNCHES more a layer that selects."""
    engine, kernels = stack_rates(ENGINE, d, source, draws), stack_rates(KERNELS, d, replace(source, posterior=None, served=True), draws)

    def both(of: Rates, own: Rates) -> Rates:
        return replace(of, c1_s=own.c1_s + LAUNCHES * own.kernel_s, c1_unit_s=own.c1_unit_s)

    return replace(
        engine,
        point=both(engine.point, kernels.point),
        draws=both(engine.draws, kernels.draws),
        sources={**engine.sources, **{name: kernels.sources[name] for name in ("c1_s", "c1_unit_s")}},
        stack=SERVED_KERNELS,
    )


def _harness(d: Deployment, draws: int, seed: int) -> RateDraws:
    """Published rates of this GPU, else its datasheet's with the published c0 and c1; the gather is the one published, an A10's."""
    known = prior_rates(d.gpu, d.precision, draws=draws, seed=seed)
    if known.sources["gather_s"].origin is Origin.PUBLISHED:
        return known
    prior = Prior(a10_gather_s(), HARNESS_GATHER_SD, "published on an A10", origin=Origin.PUBLISHED)
    scale = known.draws.gather_s / known.point.gather_s  # its draws' own scores, narrower
    spread = np.exp(HARNESS_GATHER_SD * np.log(scale) / np.std(np.log(scale)))
    return replace(
        known,
        point=replace(known.point, gather_s=prior.median),
        draws=replace(known.draws, gather_s=prior.median * spread),
        sources={**known.sources, "gather_s": prior.provenance},
    )
