"""The price of one iteration of a deployment, by term of the step time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.cost.batch import mixed_batch
from sim.cost.rates import RateDraws
from sim.cost.step_time import NAMES, step_terms, step_time_s
from sim.rates.load import load_rates
from sim.study.deployment import Deployment


@dataclass(frozen=True, slots=True)
class StepPrice:
    """Seconds of one iteration: in all at the median rates, 5-95 % over the rates, and by name of term (sim.cost.step_time.NAMES)."""

    seconds: float
    low: float
    high: float
    terms: dict[str, float]


def step_time(
    deployment: Deployment,
    decodes: Sequence[int] = (),
    chunks: Sequence[tuple[int, int]] = (),
    rates: RateDraws | None = None,
) -> StepPrice:
    """Step time of a batch: decodes by their contexts, prefill chunks as (tokens, context at the chunk's end), in tokens.

    Each chunk is its prompt's last and samples a token. `rates` None loads the best there are, as stepped in process.
    """
    known = load_rates(deployment) if rates is None else rates
    d = deployment
    batch = [(float(tokens), float(end), 1.0) for tokens, end in chunks]
    work = d.work(mixed_batch(d.model, [float(context) for context in decodes], batch, d.limits.attention))
    draws = step_time_s(work, known.draws, np)
    low, high = np.quantile(draws, [0.05, 0.95])
    terms = step_terms(work, known.point)
    named = {name: float(value) for name, value in zip(NAMES, terms, strict=True) if value}
    return StepPrice(float(step_time_s(work, known.point)), float(low), float(high), named)
