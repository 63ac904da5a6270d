"""The regime map: speed-up of sparse over dense decode across (context, batch), in one broadcast of the formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sim.closed_form.what_if import WhatIf, apart
from sim.cost.rates import RateDraws
from sim.cost.step_time import step_time_s
from sim.errors import UsageError
from sim.rates.host import Host
from sim.rates.stack_rates import because
from sim.shown import Figures, Shown
from sim.specs.attention_policy import AttentionPolicy, Placement, blocks, dense
from sim.specs.decode_stack import DecodeStack
from sim.study.deployment import Deployment

if TYPE_CHECKING:
    import xarray as xr

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, repr=False)
class Regimes(Shown):
    """Arrays of shape [context, batch]: median speed-up, its 5-95 % interval over the rates, and what fits in HBM there."""

    contexts: Floats
    batches: Floats
    speedup: Floats
    low: Floats
    high: Floats
    dense_fits: npt.NDArray[np.bool_]
    sparse_fits: npt.NDArray[np.bool_]
    draws: Floats  # [context, batch, draw], of which `low` and `high` are quantiles
    question: RegimeMap | None = None
    rates: RateDraws | None = None

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        title = self.title if self.question else "speed-up of sparse over dense"
        return title, [("cells", str(self.speedup.size)), ("speed-up", f"{self.speedup.min():.3g} to {self.speedup.max():.3g}")]

    @property
    def title(self) -> str:
        """Model, GPU and policy of the map."""
        assert self.question is not None
        d = self.question.deployment
        return f"{d.model.name} on {d.gpu.name}: speed-up of {self.question.policy.label} over dense"

    @property
    def rates_summary(self) -> str:
        """Source of the rates."""
        return "" if self.rates is None else self.rates.summary

    def to_dict(self) -> dict[str, Any]:
        """Plain data, of the answer to a question."""
        assert self.question is not None
        q = self.question
        return {
            "model": q.deployment.model.name,
            "gpu": q.deployment.gpu.name,
            "k": q.k,
            "kv_in": q.kv_in,
            "stack": q.runner.name,
            "rates": self.rates_summary,
            "context_tokens": self.contexts.tolist(),
            "batch": self.batches.tolist(),
            "speedup": self.speedup.tolist(),
            "speedup_p05": self.low.tolist(),
            "speedup_p95": self.high.tolist(),
            "interval_of": "rates only",
            "dense_fits": self.dense_fits.tolist(),
            "sparse_fits": self.sparse_fits.tolist(),
        }

    def to_xarray(self, **attrs: str | float) -> xr.Dataset:
        """Speed-up at every draw, dims context_tokens, batch and draw."""
        import xarray as xr

        meaning = {"units": "1", "long_name": "dense step time over sparse step time at the same rates"}
        coordinates = {"context_tokens": self.contexts, "batch": self.batches}
        return xr.Dataset({"speedup": (("context_tokens", "batch", "draw"), self.draws, meaning)}, coordinates, attrs)


@dataclass(frozen=True, slots=True, repr=False)
class RegimeMap(Shown):
    """Contexts and batches at which block-128 top-`k` decode beats dense, both with their KV cache in `kv_in` (hbm or host).

    `contexts` in tokens, `batches` in sequences. Stack and rates as in WhatIf: a map is of sparse attention, so the stack that has it.
    """

    deployment: Deployment
    k: int = 8
    kv_in: Placement = "hbm"
    contexts: tuple[int, ...] = tuple(2**13 * 2**i for i in range(8))
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    posterior: str | Path | None = None
    draws: int = 500
    seed: int = 0
    served: bool = True
    stack: str | None = None
    host: Host | None = None

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        d = self.deployment
        return f"{d.model.name} on {d.gpu.name}", [
            ("top", f"{self.k} blocks in {self.kv_in}"),
            ("cells", str(len(self.contexts) * len(self.batches))),
        ]

    @property
    def policy(self) -> AttentionPolicy:
        """The sparse side of the comparison."""
        return self._asked.runner.policy(blocks(self.k, self.kv_in))

    @property
    def runner(self) -> DecodeStack:
        """The stack of the map."""
        return self._asked.runner

    @property
    def _asked(self) -> WhatIf:
        most = max(self.contexts)
        how: dict[str, Any] = {
            "posterior": self.posterior,
            "draws": self.draws,
            "seed": self.seed,
            "served": self.served,
            "host": self.host,
            "stack": self.stack,
        }
        return WhatIf(self.deployment, most, (1,), (self.k,), **how).settled()

    def answer(self) -> Regimes:
        """The map. UsageError where there is nothing to select from; raises what loading rates raises."""
        rates = self._asked.rates()
        return replace(regime_map(self.deployment, self.policy, self.contexts, self.batches, rates), question=self, rates=rates)


def regime_map(
    deployment: Deployment, policy: AttentionPolicy, contexts: Sequence[int], batches: Sequence[int], rates: RateDraws
) -> Regimes:
    """Dense over sparse step time at every (context, batch) on the stack of the rates, both with KV where `policy` keeps it; cells that do
    not fit are marked.

    Raises UsageError where there is nothing to select from, or no host memory apart.
    """
    d, base = deployment, dense(policy.placement)
    if not d.model.kv_layers:
        raise UsageError(f"{d.model.name} has no full-context attention layer: there is nothing to select from")
    if policy.placement == "host" and d.gpu.unified_memory:
        raise UsageError(f"{d.gpu.name} has one memory for CPU and GPU: there is no host tier to map")
    asked = WhatIf(d, int(max(contexts)), stack=rates.stack)
    if lacks := asked.runner.lacks(policy):
        raise UsageError(f"no map for {d.model.name} on {d.gpu.name}: {lacks}{because(d)}")
    grid_c, grid_b = np.asarray(contexts, float)[:, None], np.asarray(batches, float)[None, :]

    def seconds(p: AttentionPolicy, draws: bool) -> Any:
        c, b = (grid_c[..., None], grid_b[..., None]) if draws else (grid_c, grid_b)
        return step_time_s(asked.work(b, c, p, np), rates.draws if draws else rates.point, np)

    ratio = seconds(base, True) / seconds(policy, True) * apart(asked, rates)
    low, high = np.quantile(ratio, [0.05, 0.95], axis=-1)
    free = d.memory().free

    def fits(p: AttentionPolicy) -> npt.NDArray[np.bool_]:
        per = np.array([d.request_bytes(int(c), p)[0] for c in contexts])
        return np.asarray(per[:, None] * grid_b <= free)

    return Regimes(
        contexts=np.asarray(contexts, float),
        batches=np.asarray(batches, float),
        speedup=np.asarray(seconds(base, False) / seconds(policy, False)),
        low=np.asarray(low),
        high=np.asarray(high),
        dense_fits=fits(base),
        sparse_fits=fits(policy),
        draws=np.asarray(ratio),
    )
