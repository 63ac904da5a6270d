"""llama.cpp's own kernels and sampling on a GPU where no server of it was measured: what they cost on an H100, in place of an engine's.

Whole steps in process of one build (early 2025) with dense models in q4_k_m and q8_0: docs/log/2026-11-28-llama-cpp-on-an-h100.md. The
kernels of its linear layers are a surface (sim.cost.gemm), on chips of the H100. On other GPUs they lean by what is known of two cards.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sim.cost.gemm import chip_of
from sim.cost.rates import RateDraws, Rates
from sim.units import format_number

if TYPE_CHECKING:
    from sim.study.deployment import Deployment

# Most that its kernels reach: bytes/s of KV in decodes of 1 to 8 sequences (8K to 32K tokens add 0.32 us a token), flop/s of prompts'
# attention (chunks of 512 tokens at 8K to 32K). Other GPUs are taken to be no faster.
MOST = {"beta_kv": 0.42e12, "attention_flops_per_s": 47e12}
# Its samplers go through all logits of a sequence on the CPU, one sequence after the other.
SAMPLE_S, SAMPLED_WORDS = 1.15e-3, 128_256
BUILD_SD = 0.25  # log sd of step times, of another build or another host: declared
# Log of the flop rate of linear layers over an engine's on the same GPU, and its sd: -1.7 on an H100 (prompts), -0.7 on a GB10 (whole
# steps).
LINEAR, LINEAR_SD = -1.2, 0.6


def stands_in(d: Deployment, rates: RateDraws) -> bool:
    """Whether llama.cpp is asked for on a GPU whose rates are of other engines. Apple's GPUs have kernels of their own."""
    return d.limits.engine == "llamacpp" and "llamacpp" not in rates.source.engines and not d.gpu.source.startswith("Apple")


def by_llamacpp(rates: RateDraws, d: Deployment, seed: int) -> RateDraws:
    """The draws with llama.cpp's kernels and sampling in the place of an engine's."""
    known, sample_s = _by_rows(d), _sample_s(d)
    lean = np.exp(LINEAR + LINEAR_SD * np.random.default_rng([seed, 86]).standard_normal(rates.count))

    def changed(each: Rates, factor: object) -> Rates:
        most = {name: np.minimum(getattr(each, name), limit) for name, limit in MOST.items()}
        linear = {} if known else {"linear_flops_per_s": each.linear_flops_per_s * factor}
        return replace(each, **most, **linear, c_seq_s=each.c_seq_s + sample_s)

    return replace(rates, point=changed(rates.point, math.exp(LINEAR)), draws=changed(rates.draws, lean))


def _by_rows(d: Deployment) -> bool:
    """Whether its linear layers are priced by kernels that were measured."""
    return chip_of(d.gpu, d.precision, own_kernels=True) is not None


def _sample_s(d: Deployment) -> float:
    return SAMPLE_S * d.model.vocab / SAMPLED_WORDS


def note(d: Deployment) -> str:
    """What is known of llama.cpp on this GPU."""
    linear = (
        "linear layers by rows" if _by_rows(d) else f"linear layers {math.exp(-LINEAR):.1f} times slower in prompts (log sd {LINEAR_SD:g})"
    )
    sample = format_number(1e3 * _sample_s(d), 2)
    return (
        f"llama.cpp: {linear}, attention, and {sample} ms of sampling a sequence as in a build of early 2025 on an H100; "
        f"another build or host: log sd {BUILD_SD:g}, declared."
    )
