"""The regime map: speed-up of sparse over dense decode across (context, batch), in one broadcast of the formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.bill import decode_shape, iteration_bill
from sim.memory import DEFAULT_UTILIZATION, device_memory, sequence_bytes
from sim.policy import AttentionPolicy, dense
from sim.precision import Precision
from sim.price import step_time_s
from sim.products import known_to
from sim.rates import RateDraws
from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RegimeMap:
    """Arrays of shape [context, batch]: median speed-up, its 5-95 % interval, and whether dense fits in HBM there."""

    contexts: Floats
    batches: Floats
    speedup: Floats
    low: Floats
    high: Floats
    dense_fits: npt.NDArray[np.bool_]
    sparse_fits: npt.NDArray[np.bool_]
    draws: Floats  # [context, batch, draw], of which `low` and `high` are quantiles


def regime_map(
    model: ModelSpec,
    gpu: GpuSpec,
    policy: AttentionPolicy,
    rates: RateDraws,
    contexts: tuple[int, ...],
    batches: tuple[int, ...],
    *,
    precision: Precision | None = None,
    tp: int = 1,
    utilization: float = DEFAULT_UTILIZATION,
) -> RegimeMap:
    """Dense over sparse step time at every (context, batch); cells that do not fit are priced all the same and marked."""
    used = precision or Precision()
    grid_c = np.asarray(contexts, float)[:, None]
    grid_b = np.asarray(batches, float)[None, :]

    def seconds(p: AttentionPolicy, draws: bool) -> Any:
        c, b = (grid_c[..., None], grid_b[..., None]) if draws else (grid_c, grid_b)
        bill = iteration_bill(model, decode_shape(model, b, c, p, np), used, p, tp, known_to(gpu))
        return step_time_s(bill, rates.draws if draws else rates.point, np)

    ratio = seconds(dense(policy.placement), True) / seconds(policy, True)
    low, high = np.quantile(ratio, [0.05, 0.95], axis=-1)
    memory = device_memory(model, gpu, used, tp=tp, utilization=utilization)

    def fits(p: AttentionPolicy) -> npt.NDArray[np.bool_]:
        per = np.array([sequence_bytes(model, int(c), used, p, tp)[0] for c in contexts])
        return np.asarray(per[:, None] * grid_b <= memory.free)

    return RegimeMap(
        contexts=np.asarray(contexts, float),
        batches=np.asarray(batches, float),
        speedup=np.asarray(seconds(dense(policy.placement), False) / seconds(policy, False)),
        low=np.asarray(low),
        high=np.asarray(high),
        dense_fits=fits(dense(policy.placement)),
        sparse_fits=fits(policy),
        draws=np.asarray(ratio),
    )
