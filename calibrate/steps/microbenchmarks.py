"""Rates that no packaged engine iteration shows, from microbenchmarks: all-reduces by size, and decode steps of our own kernels.

Each measurement becomes a cell with work, so the same formula applies; only the rates named in RATES are taken, from an approximate fit.
Steps are of one sequence (the formula prices block selection by the layer), and what all of them share, weights above all, is one fixed
cost here: those kernels' other costs are not an engine's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.measured_files import packaged_measurements
from calibrate.measurement import model_of, open_measurement
from calibrate.steps.fit import Posterior
from calibrate.steps.grid_cells import repeat_sd
from calibrate.steps.iterations import FIELDS, StepCells, concatenate, make_cells
from calibrate.steps.laplace import fitted
from calibrate.steps.random_rates import identified, medians
from sim.cost.batch import decode_batch
from sim.cost.rates import Rates
from sim.cost.work import Work, iteration_work
from sim.rates.priors import Prior
from sim.specs.attention_policy import AttentionPolicy, Placement
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.precision import Precision

ALL_REDUCE = "all_reduce_graph"  # engines replay graphs; the launched rows carry the host's cost besides
# The price of selection is left behind: our kernels select several times faster than the published stack that an answer stands for.
RATES = {"all-reduce": ("comm_bytes_per_s", "comm_latency_s"), "selection": ("link_bytes_per_s", "gather_s")}
WHAT = {"all-reduce": "sizes of all-reduce timed alone", "selection": "decode steps of one sequence, own kernels"}
SHARED = ("sequences", "kernels", "activation_bytes", "linear_bytes", "linear_flops", "head_bytes", "head_flops", "attention_flops")
# Published c1(k) and gathers are of other kernels: here they are only an order of magnitude.
WEAK, WEAK_SD = ("c0_s", "c1_s", "c1_unit_s", "gather_s"), 1.2
DRAWS = 4000


@dataclass(frozen=True)
class Microbenchmark:
    """Draws of all rates from one kind of measurement, of which those in `rates` are worth taking."""

    draws: Rates
    cells: StepCells
    rates: tuple[str, ...]
    basis: str


def read_microbenchmark(path: str | Path, gpu: GpuSpec) -> tuple[str, StepCells] | None:
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


def packaged_microbenchmarks(gpu: GpuSpec) -> dict[str, StepCells]:
    """All packaged cells of a GPU by kind."""
    found = [read_microbenchmark(path, gpu) for path in packaged_measurements(gpu) if path.name.startswith(("floor", "decode"))]
    kinds = sorted({kind for kind, _ in filter(None, found)})
    return {kind: concatenate([cells for k, cells in filter(None, found) if k == kind]) for kind in kinds}


def learn(kind: str, cells: StepCells, priors: Mapping[str, Prior], seed: int) -> Microbenchmark:
    """Rates of one kind."""
    weak = {name: replace(priors[name], sigma=max(priors[name].sigma, WEAK_SD)) for name in WEAK}
    taken = identified(cells.as_work(), medians(priors), RATES[kind])
    draws, _, _ = fitted(cells, {**priors, **weak}).draws(DRAWS, np.random.default_rng([seed, 6]))
    return Microbenchmark(draws, cells, taken, f"learnt from {len(cells)} {WHAT[kind]}")


def with_microbenchmarks(posterior: Posterior, several: Sequence[Microbenchmark]) -> Posterior:
    """The posterior with these rates in place of their priors, draw by draw (the fits are independent). What an engine's own iterations
    show is kept: an all-reduce inside one waits for all GPUs.
    """
    for seed, one in enumerate(several):
        taken = [name for name in one.rates if name not in posterior.learnt]
        pick = np.random.default_rng([5, seed]).integers(0, DRAWS, posterior.draws)
        rates = replace(posterior.rates, **{name: getattr(one.draws, name)[pick] for name in taken})
        posterior = replace(posterior, rates=rates, learnt=(*posterior.learnt, *taken))
    return posterior


def _all_reduces(data: Any, rows: Any) -> StepCells:
    """Each size as an iteration whose work is one all-reduce and nothing else."""
    size, gpus, median, low, high, n = (
        data[name].values[rows].astype(float) for name in ("size_bytes", "gpus", "value_median", "value_p25", "value_p75", "value_n")
    )
    nothing = Work(**dict.fromkeys(FIELDS, 0.0))
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
        [_step_work(model, row) for row in rows],
        [float(row["step_s_median"]) for row in rows],
        kind=["decode"] * len(rows),
        model=[f"{model.name} own kernels"] * len(rows),
        cell=[f"{row['mode']}:{row['context_tokens']} k{row['k_blocks']}" for row in rows],
        repeat_sd=[repeat_sd(float(row["step_s_p25"]), float(row["step_s_p75"]), float(row["step_s_n"])) for row in rows],
    )


def _step_work(model: Any, row: Mapping[str, Any]) -> Work:
    context, mode = float(row["context_tokens"]), str(row["mode"])
    policy = AttentionPolicy()
    if mode != "dense":
        where: Placement = "host" if mode == "tiered" else "hbm"
        policy = AttentionPolicy("blocks", where, int(row["k_blocks"]), unit_tokens=int(row["block_tokens"]))
    work = iteration_work(model, decode_batch(model, 1.0, context, policy), Precision(), policy)
    work = work._replace(**dict.fromkeys(SHARED, 0.0))
    return work if mode == "dense" else work._replace(summary_bytes=float(row["scan_bytes"]))
