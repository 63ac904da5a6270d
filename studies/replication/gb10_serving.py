"""The GB10 serving tables, predicted: rows that its packaged rates were not learnt from, at these rates."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cost.rates import Rates
from sim.rates.posterior import rates_for, stack_posterior
from sim.specs.gpus import get_gpu
from sim.specs.precision import Precision
from studies.replication.gb10_bursts import ENGINES, scheduled, served_rows

Array = NDArray[np.float64]
DRAWS = 800


@dataclass(frozen=True)
class Half:
    """Numbers of clients `seen` of one engine and model, rates [draw] of the engine, and FIGURES of the other numbers: printed [figure],
    predicted [figure, draw].
    """

    engine: str
    model: str
    seen: tuple[int, ...]
    rates: Rates
    unseen: Mapping[int, tuple[Array, Array]]


@functools.cache
def engine_rates(engine: str) -> Rates:
    """Packaged rates [draw] of an engine, what the formula misses among them."""
    gpu = get_gpu("GB10")
    return rates_for(gpu, Precision("nvfp4", "bf16"), path=stack_posterior(gpu, ENGINES[engine]), draws=DRAWS).draws


@functools.cache
def half(engine: str, model: str) -> Half:
    """One engine and model."""
    rates, rows = engine_rates(engine), served_rows(engine, model)
    unseen = {row.clients: (row.printed, scheduled(row).figures(rates)) for row in rows if not row.learnt}
    return Half(engine, model, tuple(row.clients for row in rows if row.learnt), rates, unseen)
