"""All-reduce between GPUs, timed alone from a captured graph: what shows the two rates of a GPU-GPU link.

Each size is an iteration whose bill is one all-reduce and nothing else, so the same formula and the same model learn from it. Engine
grids over several GPUs would show these rates among all others; none is packaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibrate.sampling import Settings
from calibrate.sources import packaged_measurements
from calibrate.steps.cells import FIELDS, StepCells, concatenate, make_cells
from calibrate.steps.engine_grid import repeat_sd
from calibrate.steps.fit import Posterior, StepFit
from sim.bill import Bill
from sim.priors import Prior
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu

GRAPH = "all_reduce_graph"  # engines replay graphs; the launched rows carry the host's cost besides
RATES = ("comm_bytes_per_s", "comm_latency_s")


@dataclass(frozen=True)
class LinkFit:
    """What all-reduces alone say of the link's rates."""

    posterior: Posterior
    cells: StepCells
    basis: str


def read_all_reduce(path: str | Path, gpu: GpuSpec) -> StepCells | None:
    """The all-reduces of a floor measurement of `gpu` as cells; None when it holds none. OSError when it cannot be read."""
    import xarray as xr

    with xr.open_dataset(path, decode_timedelta=False) as opened:
        data = opened.load()
    if data.attrs.get("suite") != "floor" or "gpus" not in data or get_gpu(str(data.attrs["gpu_name"])).name != gpu.name:
        return None
    rows = np.flatnonzero(data["what"].values.astype(str) == GRAPH)
    if not rows.size:
        return None
    size, gpus, median, low, high, n = (
        data[name].values[rows].astype(float) for name in ("size_bytes", "gpus", "value_median", "value_p25", "value_p75", "value_n")
    )
    return make_cells(
        [_bill(2 * (g - 1) / g * s) for s, g in zip(size, gpus, strict=True)],
        median,
        kind=["decode"] * rows.size,
        model=["all-reduce"] * rows.size,
        cell=[f"{s:g} B over {g:g}" for s, g in zip(size, gpus, strict=True)],
        repeat_sd=[repeat_sd(a, b, c) for a, b, c in zip(low, high, n, strict=True)],
    )


def packaged_all_reduce(gpu: GpuSpec) -> StepCells | None:
    """All packaged all-reduces of a GPU, or None."""
    found = [read_all_reduce(path, gpu) for path in packaged_measurements() if path.name.startswith("floor")]
    kept = [cells for cells in found if cells is not None]
    return concatenate(kept) if kept else None


def learn_link(cells: StepCells, priors: Mapping[str, Prior], settings: Settings) -> LinkFit:
    """Sample the link's two rates. Raises UnconvergedError when the sample may not be believed."""
    posterior = StepFit(cells, priors, settings).posterior()
    posterior.diagnostics.require()
    return LinkFit(posterior, cells, f"learnt from {len(cells)} sizes of all-reduce timed alone")


def with_link(posterior: Posterior, link: LinkFit) -> Posterior:
    """The posterior with the link's rates in place of their priors, draw by draw (the two fits are independent)."""
    size = posterior.draws
    pick = np.random.default_rng(5).integers(0, link.posterior.draws, size)
    rates = replace(posterior.rates, **{name: getattr(link.posterior.rates, name)[pick] for name in RATES})
    return replace(posterior, rates=rates, learnt=(*posterior.learnt, *RATES))


def _bill(moved_bytes: float) -> Bill:
    nothing = Bill(**dict.fromkeys(FIELDS, 0.0))
    return nothing._replace(comm_bytes=moved_bytes, comm_ops=1.0)
