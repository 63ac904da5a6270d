"""Rates of a deployment, and what of it lies outside what was measured. Never another GPU's numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.cost.gemm import quantised_gemm_surface
from sim.cost.provenance import outside_measured
from sim.cost.rates import RateDraws
from sim.engine.version_defaults import measured, unmeasured_sds
from sim.errors import SimctlError
from sim.rates import llamacpp_kernels
from sim.rates import posterior as files
from sim.rates.kinds import Seen, not_measured, packaged_seen, t_factors, widths
from sim.rates.links import link_cost, over_links, slowest
from sim.rates.other_kernels import EITHER, log_ratios
from sim.specs.decode_stack import ENGINE
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import matrix_units_of
from sim.specs.precision import arithmetic_note, checkpoint_notes

if TYPE_CHECKING:
    from sim.study.deployment import Deployment

# Log sd, between deployments, of how far step times lie from the formula where this part of a deployment was not measured. Models: the
# mean errors of four models left out one at a time on an H100 and an H200 have an rms of 2.5 %. That of fp8 is declared, around what was
# seen of two models (4 %). Other dtypes, degrees of TP and engines are kinds (sim.rates.kinds).
OUTSIDE_SD = {"model": 0.025, "dtype": 0.05}
# Log of a layer's launches without graphs over those of compiled layers as served, at the mean of six hosts of which the suite `host` is
# packaged, and its sd: five models on three hosts took 0.82 (0.79 to 0.95) of the geometric mean of their hosts' speeds of launching and of
# interpreting; the mean over the six is -0.12, their sd 0.30, of which launching as served has 0.29.
EAGER_LAUNCH, EAGER_LAUNCH_SD = -0.32, 0.17
# A maker of GPUs none of whose cards was measured: kernels and engines reach less of its datasheets. Log of the loss and its sd, declared.
OUTSIDE = "outside what was measured:"  # how the note begins that names parts
OTHER_MAKER, OTHER_MAKER_LOSS, OTHER_MAKER_SD = "AMD", 0.3, 0.3
# Log of the share of the 16-bit rate that GEMMs of weights read narrow and computed in 16 bits reach where no such kernel was measured, and
# its sd, by the matrix units' instruction: kernels written for older units reach half of newer ones. At 2,048 rows of an H100 one of two
# reaches 92 % (Machete) and one 45 % (Marlin). Experts of 4-bit integers in public kernel tables (256 to 1,024 rows of each, the best
# twentieth) reach 0.31 of an H100's 16-bit GEMMs, 0.15 of a B200's, 0.73 of an L40S's, 0.68 of an RTX PRO 6000's: the others by the H100's.
# In flop of an SM a clock these kernels do 1,071 and 981 on the wide units, where an A100's 16-bit GEMMs do 1,897: 0.54 of them by experts,
# 0.86 by the H100's Marlin; no kernel of these tables ran on one.
WEIGHT_ONLY = {"wgmma": (-0.44, 0.35), "tcgen05": (-1.5, 0.35), "sm80": (-0.38, 0.25), "": (-0.1, 0.2)}
# Log sd of step times on a workstation's or consumer's card, of which no server was measured: declared, without a lean. Boards of one chip
# differ in power limits, clocks, cooling and drivers.
WORKSTATION, WORKSTATION_SD = "RTX-", 0.2
# Scale of the log-t by which steps of another owner's machine differ. Steps above 0.1 s of five H100s and three H200s of one provider lie
# 0.9 and 1.3 % apart (sd); elsewhere clocks, power cap and cooling are unknown. Declared: three times that.
OWNERS_SD = 0.03
FAMILY_SD = 0.04  # more of a model none of whose family was measured: Gemma 3 and Phi-4 on an H200 were 4 and 3 % off


def load_rates(
    deployment: Deployment,
    *,
    posterior: str | Path | None = None,
    draws: int = 1000,
    seed: int = 0,
    seen: Sequence[Seen] | None = None,
) -> RateDraws:
    """Draws of a deployment's rates: from the posterior file given, else the GPU's packaged one, else the population's, else priors.

    Where a part of the deployment was not measured on that GPU, the draws are wider by what leaving such a part out has shown, and of a
    kind of serving by what `seen` deployments were off (None: the packaged ones).
    Raises SimctlError for a file that is no posterior or of another GPU, OSError when it cannot be read.
    """
    d = deployment
    path = posterior or files.stack_posterior(d.gpu, d.limits.engine)
    known = files.rates_for(d.gpu, d.precision, path=path, draws=draws, seed=seed, tp=d.tp)
    if known.stack != ENGINE:
        raise SimctlError(f"{path}: rates of a decode step by {known.stack}, not of an engine: what-if takes them")
    known = over_links(known, slowest(d.parallel, d.tp, d.gpu, d.links), d.gpu, d.links, seed)
    return widened(known, deployment, seed, seen)


def widened(rates: RateDraws, deployment: Deployment, seed: int = 0, seen: Sequence[Seen] | None = None) -> RateDraws:
    """The draws moved as wholes by what is not known of a deployment outside what was measured of its GPU.

    On a GPU nobody measured, the hierarchy over GPUs is that wide already.
    """
    variance, kinds = 0.0, not_measured(deployment, rates.source)
    known = packaged_seen() if seen is None and kinds else seen or ()
    for i, kind in enumerate(kinds):
        found = widths(kind, known)
        steps, prompts = (t_factors(width, rates.count, [seed, 83, i, what]) for what, width in enumerate(found))
        more = math.exp(found[1].mean)
        for name, power in (("launch_layer_s", 1), ("linear_flops_per_s", -1)):  # what a prompt waits for
            rates = _times(rates, name, more**power, (more * prompts) ** power)
        rates = files.slowed(files.moved(rates, steps), found[0].mean, 0.0, seed)
    if llamacpp_kernels.stands_in(deployment, rates):
        rates = llamacpp_kernels.by_llamacpp(rates, deployment, seed)
        variance += llamacpp_kernels.BUILD_SD**2
    launch, launch_sd = (EAGER_LAUNCH, EAGER_LAUNCH_SD) if deployment.limits.enforce_eager else (0.0, 0.0)
    if unmeasured_version(deployment):
        step_sd, version_sd = unmeasured_sds(deployment.limits.engine_version)
        variance += step_sd**2
        launch_sd = math.hypot(launch_sd, version_sd)
    if launch_sd:
        rates = _scaled(rates, "launch_layer_s", launch, launch_sd, [seed, 81])
    if unmeasured_weight_only(deployment):
        rates = _scaled(rates, "linear_flops_per_s", *WEIGHT_ONLY[matrix_units_of(deployment.gpu)], [seed, 82])
    if ratios := log_ratios(deployment):
        share = ratios.middle - 0.5 + np.random.default_rng([seed, 84]).random(rates.count)
        for name, ratio in (("beta", ratios.few), ("linear_flops_per_s", ratios.many)):
            rates = _times(rates, name, math.exp(-ratios.middle * ratio), np.exp(-share * ratio))
    if deployment.gpu.source.startswith(OTHER_MAKER):
        rates = files.slowed(rates, OTHER_MAKER_LOSS, OTHER_MAKER_SD, seed)
    if workstation(deployment.gpu):
        variance += WORKSTATION_SD**2
    if not rates.source.measured:
        return _moved(rates, variance, seed)
    outside = set(_outside(deployment, rates)) & set(OUTSIDE_SD) - ({"dtype"} if "precision" in kinds else set())
    variance += sum(OUTSIDE_SD[part] ** 2 for part in outside)
    if "model" in outside and not family_known(deployment.model.name, rates.source.models):
        variance += FAMILY_SD**2
    return _moved(rates, variance, seed)


def on_another_machine(rates: RateDraws, seed: int = 0) -> RateDraws:
    """The draws of a card that stands elsewhere than those measured: wider by what machines of one card differ by."""
    wider = files.moved(rates, files.model_errors(np.full(rates.count, OWNERS_SD), seed + 3))
    return replace(wider, source=rates.source.after(f"another owner's machine, log-t of scale {OWNERS_SD:g} on step times"))


def _moved(rates: RateDraws, variance: float, seed: int) -> RateDraws:
    return files.moved(rates, files.model_errors(np.full(rates.count, variance**0.5), seed + 1)) if variance else rates


def _scaled(rates: RateDraws, name: str, log_mean: float, log_sd: float, seed: list[int]) -> RateDraws:
    drawn = np.exp(log_mean + log_sd * np.random.default_rng(seed).standard_normal(rates.count))
    return _times(rates, name, math.exp(log_mean), drawn)


def _times(rates: RateDraws, name: str, point: float, drawn: NDArray[np.float64]) -> RateDraws:
    """One rate times a factor at the medians and in each draw."""
    both = ((rates.point, point), (rates.draws, drawn))
    scaled = [replace(each, **{name: getattr(each, name) * factor}) for each, factor in both]
    return replace(rates, point=scaled[0], draws=scaled[1])


def workstation(gpu: GpuSpec) -> bool:
    """Whether it is the catalogue's card of a workstation or a consumer, known by datasheets or its chip alone."""
    return gpu.origin == "catalogue" and gpu.name.startswith(WORKSTATION) and files.packaged_posterior(gpu.name) is None


def unmeasured_version(d: Deployment) -> bool:
    """Whether the engine is asked for in a version that was measured nowhere."""
    return d.limits.engine == "vllm" and not measured(d.limits.engine_version)


def unmeasured_weight_only(d: Deployment) -> bool:
    """Whether weights are read narrow and computed in 16 bits by kernels that were not measured on the GPU or its chip."""
    if d.limits.engine not in ("vllm", "sglang") or not arithmetic_note(d.precision, d.gpu):
        return False
    return quantised_gemm_surface(d.model, d.precision, d.gpu) is None


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
    """Notes on rates: which part of the deployment nobody measured; empty where all of it was."""
    d = deployment
    outside = _outside(d, rates).values()
    notes = checkpoint_notes(d.model, d.precision)
    notes += [llamacpp_kernels.note(d)] if llamacpp_kernels.stands_in(d, rates) else []
    notes += [f"{OUTSIDE} {'; '.join(outside)}."] if outside else []
    if d.gpu.source.startswith(OTHER_MAKER):
        loss, factor = np.exp(OTHER_MAKER_LOSS), np.exp(1.645 * OTHER_MAKER_SD)
        taken = f"kernels are taken for {loss:.2g} times as slow as by such a datasheet elsewhere, {factor:.2g} times more or less"
        notes.append(f"no number behind these rates was measured on an AMD GPU: {taken}.")
    if said := arithmetic_note(d.precision, d.gpu):
        share, sd = WEIGHT_ONLY[matrix_units_of(d.gpu)]
        rate = f" Not measured there: {math.exp(share):.2g} of the 16-bit rate at many rows (log sd {sd:g})."
        notes.append(said + rate * unmeasured_weight_only(d))
    if ratios := log_ratios(d):
        apart = f"{100 * math.expm1(ratios.few):+.0f} % at few rows, {100 * math.expm1(ratios.many):+.0f} % at many"
        which = f"linear layers by {d.precision.kernel}"
        if ratios.middle == EITHER:
            notes.append(f"{which}, not measured, or another kernel ({apart}): the interval holds both.")
        else:
            notes.append(f"{which}: one server's, {apart} of a measured kernel's; the interval holds half of that more or less.")
    if workstation(d.gpu):
        notes.append(f"no server of a workstation's or consumer's card was measured: log sd {WORKSTATION_SD:g} of step times, declared.")
    for kind in not_measured(d, rates.source):
        steps, prompts = widths(kind, packaged_seen())
        sds = f"log sd {steps.sd:.2g} of step times, {prompts.sd:.2g} more of prompts; Student t, {steps.dof:g} degrees of freedom"
        others = f"{steps.seen} measured deployments of this kind" if steps.seen else "other kinds"
        both = 100 * math.expm1(steps.mean), 100 * math.expm1(steps.mean + prompts.mean)
        slower = "slower by {:.2g} % (prompts by {:.2g} %) and ".format(*both) * any(both)
        notes.append(f"{slower}wider, by how far predictions of {others} were off: {kind} ({sds}).")
    if d.limits.enforce_eager:
        notes.append(f"wider, by how far five models without CUDA graphs were off: eager (log sd {EAGER_LAUNCH_SD:g} of launches).")
    if unmeasured_version(d):
        sds = "log sd {:g}; of launches {:g}".format(*unmeasured_sds(d.limits.engine_version))
        notes.append(f"vllm {d.limits.engine_version} was not measured: declared priors ({sds}).")
    if d.parallel.dp > 1:
        notes.append(f"{d.parallel.dp} data-parallel ranks step together; limits and KV are those of all of them, requests spread evenly.")
    return notes + link_notes(d, rates)


def link_notes(d: Deployment, rates: RateDraws) -> list[str]:
    """Notes on traffic between GPUs, and on parallelism that was not measured."""
    notes, way = [], slowest(d.parallel, d.tp, d.gpu, d.links)
    if way != "nvlink":
        cost, several = link_cost(way, d.gpu, d.links), d.links.nodes(d.gpus)
        where = f"{d.gpus} GPUs{f' on {several} nodes' if several > 1 else ''}"
        hint = "" if way != "network" or d.links.network else " (--topology names it)"
        if rates.sources["comm_latency_s"].measured:
            said = rates.sources["comm_latency_s"].text()
        else:
            said = (
                f"declared prior, {1e6 * cost.latency_s:.0f} us an operation and {cost.bytes_per_s / 1e9:.3g} GB/s "
                f"(log sd {cost.latency_sd:g} and {cost.bytes_sd:g}), unmeasured"
            )
        notes.append(f"the cost of all-reduces: {where} over {cost.words}{hint}: {said}.")
    elif d.tp > 1:
        learnt = rates.sources["comm_latency_s"].measured
        source = "learnt from one model over two of these GPUs" if learnt else rates.sources["comm_latency_s"].text()
        more = "three models were served over two H100s" if d.tp == 2 else f"nothing was measured over {d.tp}"
        notes.append(f"the cost of all-reduces: {source}; {more}.")
    return notes
