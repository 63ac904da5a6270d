"""The regime map: speed-up of sparse over dense decode across (context, batch), in one broadcast of the formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sim.cost.batch import decode_batch
from sim.cost.rates import RateDraws
from sim.cost.step_time import step_time_s
from sim.errors import UsageError
from sim.specs.attention_policy import AttentionPolicy, dense
from sim.study.deployment import Deployment
from sim.study.memory import sequence_bytes

if TYPE_CHECKING:
    import xarray as xr

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RegimeMap:
    """Arrays of shape [context, batch]: median speed-up, its 5-95 % interval over the rates, and what fits in HBM there."""

    contexts: Floats
    batches: Floats
    speedup: Floats
    low: Floats
    high: Floats
    dense_fits: npt.NDArray[np.bool_]
    sparse_fits: npt.NDArray[np.bool_]
    draws: Floats  # [context, batch, draw], of which `low` and `high` are quantiles

    def to_xarray(self, **attrs: str | float) -> xr.Dataset:
        """Speed-up at every draw, dims context_tokens, batch and draw."""
        import xarray as xr

        meaning = {"units": "1", "long_name": "dense step time over sparse step time at the same rates"}
        coordinates = {"context_tokens": self.contexts, "batch": self.batches}
        return xr.Dataset({"speedup": (("context_tokens", "batch", "draw"), self.draws, meaning)}, coordinates, attrs)


def regime_map(
    deployment: Deployment, policy: AttentionPolicy, contexts: Sequence[int], batches: Sequence[int], rates: RateDraws
) -> RegimeMap:
    """Dense over sparse step time at every (context, batch), both with KV where `policy` keeps it; cells that do not fit are marked.

    Raises UsageError where there is nothing to select from, or no host memory apart.
    """
    d, base = deployment, dense(policy.placement)
    if not d.model.kv_layers:
        raise UsageError(f"{d.model.name} has no full-context attention layer: there is nothing to select from")
    if policy.placement == "host" and d.gpu.unified_memory:
        raise UsageError(f"{d.gpu.name} has one memory for CPU and GPU: there is no host tier to map")
    grid_c, grid_b = np.asarray(contexts, float)[:, None], np.asarray(batches, float)[None, :]

    def seconds(p: AttentionPolicy, draws: bool) -> Any:
        c, b = (grid_c[..., None], grid_b[..., None]) if draws else (grid_c, grid_b)
        return step_time_s(d.work(decode_batch(d.model, b, c, p, np), p), rates.draws if draws else rates.point, np)

    ratio = seconds(base, True) / seconds(policy, True)
    low, high = np.quantile(ratio, [0.05, 0.95], axis=-1)
    free = d.memory().free

    def fits(p: AttentionPolicy) -> npt.NDArray[np.bool_]:
        per = np.array([sequence_bytes(d.model, int(c), d.precision, p, d.tp)[0] for c in contexts])
        return np.asarray(per[:, None] * grid_b <= free)

    return RegimeMap(
        contexts=np.asarray(contexts, float),
        batches=np.asarray(batches, float),
        speedup=np.asarray(seconds(base, False) / seconds(policy, False)),
        low=np.asarray(low),
        high=np.asarray(high),
        dense_fits=fits(base),
        sparse_fits=fits(policy),
        draws=np.asarray(ratio),
    )
