"""Alarms by the roofline: answers sooner than a deployment's datasheet allows, and the cards that would take as long as was seen."""

from __future__ import annotations

import math

import numpy as np

from calibrate.served.runs import Experiment, ServedRun
from sim.cost.batch import chunk_sums, decode_batch, from_sums
from sim.rates.host import Host
from sim.rates.priors import flops_for
from sim.specs.gpus import get_gpu, list_gpus

SOON = 0.05  # share of prompts answered below their roofline that is worth a word
SAY = "say --log-option assume-prefix=N, or give prefix_ids"
ALIKE = 0.12  # log ratio within which a card takes as long as another
GPUS = (1, 2, 4, 8)


def cached_prompts(run: ServedRun, log: Experiment) -> list[str]:
    """Prompts answered sooner than their GEMMs can be computed, where the log does not say what they share."""
    if log.content or log.cached_tokens is not None or not run.deployment.caches_prefixes or log.stated is not None:
        return []
    work = run.deployment.work(from_sums(0.0, 0.0, 0.0, 0.0, chunk_sums([(1024.0, 1024.0, 1.0)], run.model.window)))
    peak, _ = flops_for(run.gpu, run.precision.weights)
    least_s = (work.linear_flops + work.expert_flops) / 1024.0 / peak * log.prompt_tokens
    soon = int((log.ttft_s < least_s).sum())
    if soon < SOON * len(log.ttft_s):
        return []
    return [
        f"shared prefixes? {soon} of {len(log.ttft_s)} prompts were answered sooner than their GEMMs take at the datasheet's peak: {SAY}"
    ]


def tokens_too_soon(run: ServedRun, log: Experiment) -> list[str]:
    """Tokens that come sooner than the weights can be read, where no drafts are served."""
    if run.limits.options.get("draft_tokens") or not np.isfinite(log.tpot_s).any():
        return []
    work = run.deployment.work(decode_batch(run.model, 1.0, 1.0))
    least_s = float(work.linear_bytes + work.head_bytes + work.expert_bytes) / run.gpu.memory_bandwidth
    typical = float(np.nanmedian(log.tpot_s))
    if typical >= least_s:
        return []
    return [
        f"wrong GPU, TP or weights? A token takes {1e3 * typical:.2g} ms in the median, and reading the weights {1e3 * least_s:.2g} ms at "
        f"the datasheet's bandwidth of {run.tp} x {run.gpu.name}: drafts, fewer bits, or more GPUs"
    ]


def look_alikes(run: ServedRun, host: Host) -> list[str]:
    """Cards of the catalogue whose bandwidth and flop/s are those of the run's GPUs over what was learnt, fewest GPUs first."""
    wanted = math.log(host.step), math.log(host.step * host.clock)
    own, _ = flops_for(run.gpu, run.precision.weights)
    found = []
    for name in list_gpus():
        card = get_gpu(name)
        flops, _ = flops_for(card, run.precision.weights)
        for n in GPUS:
            ratios = (run.tp * run.gpu.memory_bandwidth / (n * card.memory_bandwidth), run.tp * own / (n * flops))
            off = max(abs(math.log(ratio) - each) for ratio, each in zip(ratios, wanted, strict=True))
            if off < ALIKE and (n, card.name) != (run.tp, run.gpu.name):
                found.append((n != run.tp, off, f"{n} x {card.name}"))
    return [name for *_, name in sorted(found)][:3]
