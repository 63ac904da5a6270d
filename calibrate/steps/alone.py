"""Rates that no packaged engine iteration shows, learnt from what was timed alone.

A GPU-GPU link from all-reduces by size, and selection (find, gather, host link) from whole decode steps of our own kernels: dense, sparse
and tiered. Each becomes cells with bills, so the same formula and the same model learn from them, and only the rates named in RATES are
taken. Steps are of one sequence (the formula prices finding by the layer), and what all of them share, weights above all, is one fixed
cost here: those kernels' other costs are not an engine's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.measurement import model_of, open_measurement
from calibrate.sampling import Settings
from calibrate.sources import packaged_measurements
from calibrate.steps.cells import FIELDS, StepCells, concatenate, make_cells
from calibrate.steps.engine_grid import repeat_sd
from calibrate.steps.fit import Posterior, StepFit
from calibrate.steps.rates import unseen
from sim.bill import Bill, decode_shape, iteration_bill
from sim.policy import AttentionPolicy, Placement
from sim.precision import Precision
from sim.priors import Prior
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu

ALL_REDUCE = "all_reduce_graph"  # engines replay graphs; the launched rows carry the host's cost besides
RATES = {
    "all-reduce": ("comm_bytes_per_s", "comm_latency_s"),
    "selection": ("link_bytes_per_s", "link_latency_s", "gather_s"),
}
# Seen too and left behind: kernels of ours find several times faster than the published whole stack that an answer about sparse attention
# stands for (docs/calibrate.md).
LEFT = {"all-reduce": (), "selection": ("find_s", "find_unit_s")}
WHAT = {"all-reduce": "sizes of all-reduce timed alone", "selection": "decode steps of one sequence, own kernels"}
SHARED = ("sequences", "weight_bytes", "linear_flops", "attention_flops")
# Published c1(k) and gathers are of other kernels: here they are only an order of magnitude.
WEAK = 1.2


@dataclass(frozen=True)
class Alone:
    """Rates learnt from one kind of measurement: draws of all rates, of which those in `rates` are worth taking."""

    posterior: Posterior
    cells: StepCells
    rates: tuple[str, ...]
    basis: str
    left: tuple[str, ...] = ()  # seen as well, and what is not taken whatever engines show

    def not_taken(self, free: Collection[str]) -> dict[str, tuple[float, float, float]]:
        """5 %, median and 95 % of rates seen here and not taken: those that engine iterations show (`free`), and those in `left`."""
        names = [name for name in (*self.rates, *self.left) if name in free or name in self.left]
        found = {name: np.quantile(np.asarray(getattr(self.posterior.rates, name)), (0.05, 0.5, 0.95)) for name in names}
        return {name: (float(low), float(mid), float(high)) for name, (low, mid, high) in found.items()}


def read_alone(path: str | Path, gpu: GpuSpec) -> tuple[str, StepCells] | None:
    """(kind, cells) of a floor or decode measurement of `gpu`; None when there is nothing to learn.

    Raises UsageError for a file that is no measurement, OSError when it cannot be read.
    """
    data = open_measurement(path)
    suite = data.attrs.get("suite")
    if suite not in ("floor", "decode") or get_gpu(str(data.attrs["gpu_name"])).name != gpu.name:
        return None
    if suite == "decode":
        return "selection", _steps(data, path)
    rows = np.flatnonzero(data["what"].values.astype(str) == ALL_REDUCE) if "gpus" in data else np.zeros(0, int)
    return ("all-reduce", _all_reduces(data, rows)) if rows.size else None


def packaged_alone(gpu: GpuSpec) -> dict[str, StepCells]:
    """All packaged cells of a GPU that were timed alone, by kind, where they show a rate worth taking."""
    found = [read_alone(path, gpu) for path in packaged_measurements(gpu) if path.name.startswith(("floor", "decode"))]
    kinds = {kind for kind, _ in filter(None, found)}
    every = {kind: concatenate([cells for k, cells in filter(None, found) if k == kind]) for kind in sorted(kinds)}
    return {kind: cells for kind, cells in every.items() if not unseen(cells.as_bill()._asdict()) >= set(RATES[kind])}


def learn_alone(kind: str, cells: StepCells, priors: Mapping[str, Prior], settings: Settings) -> Alone:
    """Sample the rates of one kind. Raises UnconvergedError when the sample may not be believed."""
    weak = {name: replace(priors[name], sigma=max(priors[name].sigma, WEAK)) for name in ("c0_s", "find_s", "find_unit_s", "gather_s")}
    posterior = StepFit(cells, {**priors, **weak}, settings).posterior()
    posterior.diagnostics.require()
    taken = tuple(name for name in RATES[kind] if name in posterior.learnt)
    left = tuple(name for name in LEFT[kind] if name in posterior.learnt)
    return Alone(posterior, cells, taken, f"learnt from {len(cells)} {WHAT[kind]}", left)


def with_alone(posterior: Posterior, several: Sequence[Alone]) -> Posterior:
    """The posterior with rates learnt alone in place of their priors, draw by draw (the fits are independent). What an engine's own
    iterations show is kept: an all-reduce inside one waits for both GPUs, alone it does not.
    """
    for seed, alone in enumerate(several):
        taken = [name for name in alone.rates if name not in posterior.learnt]
        pick = np.random.default_rng([5, seed]).integers(0, alone.posterior.draws, posterior.draws)
        rates = replace(posterior.rates, **{name: getattr(alone.posterior.rates, name)[pick] for name in taken})
        posterior = replace(posterior, rates=rates, learnt=(*posterior.learnt, *taken))
    return posterior


def _all_reduces(data: Any, rows: Any) -> StepCells:
    """Each size as an iteration whose bill is one all-reduce and nothing else."""
    size, gpus, median, low, high, n = (
        data[name].values[rows].astype(float) for name in ("size_bytes", "gpus", "value_median", "value_p25", "value_p75", "value_n")
    )
    nothing = Bill(**dict.fromkeys(FIELDS, 0.0))
    return make_cells(
        [nothing._replace(comm_bytes=2 * (g - 1) / g * s, comm_ops=1.0) for s, g in zip(size, gpus, strict=True)],
        median,
        kind=["decode"] * rows.size,
        model=["all-reduce"] * rows.size,
        cell=[f"{s:g} B over {g:g}" for s, g in zip(size, gpus, strict=True)],
        repeat_sd=[repeat_sd(a, b, c) for a, b, c in zip(low, high, n, strict=True)],
    )


def _steps(data: Any, path: str | Path) -> StepCells:
    """Whole decode steps. What selection reads is what the file says: its kernels keep blocks alone and one summary a block."""
    names = ("mode", "status", "batch", "context_tokens", "k_blocks", "block_tokens", "step_s_median", "step_s_p25", "step_s_p75",
             "step_s_n", "scan_bytes")  # fmt: skip
    rows = [dict(zip(names, values, strict=True)) for values in zip(*(data[n].values for n in names), strict=True)]
    rows = [row for row in rows if str(row["status"]) == "ok" and int(row["batch"]) == 1]
    model = model_of(data.attrs, path)
    return make_cells(
        [_step_bill(model, row) for row in rows],
        [float(row["step_s_median"]) for row in rows],
        kind=["decode"] * len(rows),
        model=[f"{model.name} own kernels"] * len(rows),
        cell=[f"{row['mode']}:{row['context_tokens']} k{row['k_blocks']}" for row in rows],
        repeat_sd=[repeat_sd(float(row["step_s_p25"]), float(row["step_s_p75"]), float(row["step_s_n"])) for row in rows],
    )


def _step_bill(model: Any, row: Mapping[str, Any]) -> Bill:
    context, mode = float(row["context_tokens"]), str(row["mode"])
    policy = AttentionPolicy()
    if mode != "dense":
        where: Placement = "host" if mode == "tiered" else "hbm"
        policy = AttentionPolicy("blocks", where, int(row["k_blocks"]), unit_tokens=int(row["block_tokens"]))
    bill = iteration_bill(model, decode_shape(model, 1.0, context, policy), Precision(), policy)
    bill = bill._replace(**dict.fromkeys(SHARED, 0.0))
    return bill if mode == "dense" else bill._replace(summary_bytes=float(row["scan_bytes"]))
