"""The price of one iteration of a deployment, or of one GEMM of a layer, by term of the step time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.cost.batch import mixed_batch
from sim.cost.gemm import GEMM_KERNELS, Gemm, at_rows, gemms_over_roofline
from sim.cost.rates import RateDraws
from sim.cost.step_time import NAMES, kernels_s, linear_s, step_terms, step_time_s
from sim.cost.work import Work
from sim.errors import UsageError
from sim.rates.posterior import rates_for
from sim.rates.source import RateSource
from sim.specs.gpus import get_gpu
from sim.specs.precision import ACTIVATION_BYTES, Precision, quantises
from sim.study.deployment import Deployment


@dataclass(frozen=True, slots=True)
class TimeByTerm:
    """Seconds of one iteration or GEMM: in all at the median rates, 5-95 % over the rates, by name of term (sim.cost.step_time.NAMES)."""

    seconds: float
    low: float
    high: float
    terms: dict[str, float]


def step_time(
    deployment: Deployment,
    decodes: Sequence[int] = (),
    chunks: Sequence[tuple[int, int]] = (),
    rates: RateDraws | None = None,
) -> TimeByTerm:
    """Step time of a batch: decodes by their contexts, prefill chunks as (tokens, context at the chunk's end), in tokens.

    Each chunk is its prompt's last and samples a token. `rates` None: those of a served engine, as in a what-if. UsageError for a decode
    without context, or a chunk that ends before its own tokens.
    """
    for context in decodes:
        if context < 1:
            raise UsageError(f"a decode's context is its prompt and what was said, 1 token or more, got {context}")
    if not (decodes or chunks):
        raise UsageError("a batch has a decode or a chunk: both are empty")
    try:
        pairs = [(int(tokens), int(end)) for tokens, end in chunks]
    except (TypeError, ValueError):
        raise UsageError(f"chunks are pairs (tokens, context at the end), got {chunks!r}") from None
    for tokens, end in pairs:
        if not 1 <= tokens <= end:
            raise UsageError(f"a chunk is (tokens, context at its end), 1 <= tokens <= context, got ({tokens}, {end})")
    known = RateSource().of(deployment, draws=1000)[0] if rates is None else rates
    d = deployment
    batch = [(float(tokens), float(end), 1.0) for tokens, end in pairs]
    work = d.work(mixed_batch(d.model, [float(context) for context in decodes], batch, d.limits.attention))
    draws = step_time_s(work, known.draws, np)
    low, high = np.quantile(draws, [0.05, 0.95])
    terms = step_terms(work, known.point)
    named = {name: float(value) for name, value in zip(NAMES, terms, strict=True) if value}
    return TimeByTerm(float(step_time_s(work, known.point)), float(low), float(high), named)


def gemm_time(gpu: str, k: int, n: int, rows: int, dtype: str = "bf16", rates: RateDraws | None = None) -> TimeByTerm:
    """Time of one GEMM of a layer, [rows, k] x [k, n] with weights of `dtype`, as an iteration on the GPU is charged.

    The kernel that quantises activations to 8 bits counts. `rates` None loads the best there are. Source: sim.cost.gemm.
    """
    if min(k, n, rows) < 1:
        raise UsageError(f"a GEMM has k, n and rows of at least 1, got {k}, {n} and {rows}")
    card, precision = get_gpu(gpu), Precision(dtype)
    known = rates_for(card, precision) if rates is None else rates
    over, quantised = gemms_over_roofline([(Gemm(k, n, False), 1)], precision, card), quantises(precision.weights, card)
    efficiency = at_rows(over, float(rows))
    work = Work(*[0.0] * len(Work._fields))._replace(
        kernels=(GEMM_KERNELS if over is None else 0.0) + quantised,
        activation_bytes=float(quantised * rows * k * (ACTIVATION_BYTES + precision.weight_bytes)),
        linear_bytes=efficiency * k * n * precision.weight_bytes,
        linear_flops=efficiency * 2.0 * k * n * rows,
    )
    low, high = np.quantile(kernels_s(work, known.draws) + linear_s(work, known.draws), [0.05, 0.95])
    small, linear = float(kernels_s(work, known.point)), float(linear_s(work, known.point))
    return TimeByTerm(small + linear, float(low), float(high), {NAMES.weights: linear} | ({NAMES.kernels: small} if small else {}))
