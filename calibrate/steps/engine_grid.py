"""Engine-grid measurements as step-time cells.

A file holds one (GPU, engine, model, dtype): medians of counted iterations per cell, with the composition the engine really ran.
Only grid cells that ran are learnt from; controls and repeats at the end are for drift, not for fitting. Where a cell was visited several
times, its noise floor is what visits differ by: a host that is slow for seconds slows all repeats of one visit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.measurement import check_attributes, check_columns, model_of, open_measurement, whole_number
from calibrate.steps.cells import SPREAD, StepCells, grid_shape, make_cells
from calibrate.steps.decodes import asked_of, contexts_of, with_idle
from calibrate.steps.noise import floor
from sim.bill import Bill, iteration_bill
from sim.errors import UsageError
from sim.precision import Precision
from sim.products import known_to
from sim.quantiles import MEDIAN_SE
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.model import ModelSpec

Array = NDArray[np.float64]
SCHEMA, SUITE = "simctl-measurement/1", "engine-grid"
SUITES = (SUITE, "weight-axis")  # a weight axis is a grid of decodes alone
KIND = {"decode": "decode", "ragged": "decode", "prefill": "prefill", "packed": "prefill", "mixed": "mixed"}
DTYPE = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}
SECONDS = ("step_s_median", "step_s_p25", "step_s_p75")
COUNTS = ("decode_seqs_median", "decode_context_tokens_median", "chunks", "chunk_tokens", "offset_tokens")
# of an iteration: far beyond any engine's, and small enough to be laid out one by one
MOST = dict.fromkeys(COUNTS, 2.0**40) | {"decode_seqs_median": 2.0**20, "chunks": 2.0**20}
WELCOME = ("context_sd_tokens",)  # earlier tables do not say it
NEEDED = (*SECONDS, "step_s_n", "label", "kind", "role", "status", *COUNTS)
# Standard deviation of the logarithm of a visit's median, typical of the four H100 grids of several visits (a test holds it): a first
# guess, until it is known what share of a cell is the host's (calibrate.steps.noise).
ONE_VISIT = 0.024
QUARTILE_SPAN = 1.349  # standard deviations between the quartiles of normal samples


@dataclass(frozen=True)
class Grid:
    """One file: its cells, and what they were measured on."""

    cells: StepCells
    gpu: GpuSpec
    model: ModelSpec
    precision: Precision
    engine: str
    source: str
    tp: int = 1


def read_engine_grid(path: str | Path, gpu: GpuSpec | None = None) -> Grid:
    """Read and check one file. `gpu` stands for a machine that no catalogue knows (a CPU).

    Raises UsageError naming the file and what is wrong with it; OSError when it cannot be read.
    """
    data = open_measurement(path)
    attrs = data.attrs
    check_attributes(attrs, path, SCHEMA, SUITES, ("gpu_name", "model", "weight_dtype"))
    check_columns(data, path, "cell", NEEDED, numbers=("step_s_n", *COUNTS), seconds=SECONDS)
    columns = {name: data[name].values for name in (*NEEDED, *(name for name in WELCOME if name in data))}
    ran = (columns["role"].astype(str) == "grid") & (columns["status"].astype(str) == "ok") & (columns["step_s_n"] > 0)
    rows = [{name: column[i] for name, column in columns.items()} for i in np.flatnonzero(ran)]
    for row in rows:
        for name in COUNTS:
            if not 0 <= row[name] <= MOST[name]:
                raise UsageError(f"{path}: cell '{row['label']}': {name} is not a count ({row[name]:g})")
        for name in ("step_s_p25", "step_s_p75"):
            if row[name] < 0:
                raise UsageError(f"{path}: cell '{row['label']}': {name} is negative ({row[name]:g} s)")
    model = model_of(attrs, path)
    if attrs.get("engine") != "vllm":
        model = replace(model, second_runner=False)
    precision = Precision(_dtype(attrs["weight_dtype"]), _dtype(attrs.get("kv_dtype", "bfloat16")))
    tp = whole_number(attrs, "tensor_parallel_size", 1, path)
    within, visits, visits_sd = visits_of(data, ran, rows)
    asked = asked_of(Path(path), attrs)
    gpu = gpu or get_gpu(str(attrs["gpu_name"]))
    on = known_to(gpu)
    label = f"{attrs['model']} {precision.weights}" + (f" tp{tp}" if tp > 1 else "")
    cells = make_cells(
        [_bill(model, precision, row, tp, asked, on) for row in rows],
        [float(row["step_s_median"]) for row in rows],
        kind=[SPREAD if tp > 1 and row["kind"] in KIND else KIND.get(str(row["kind"]), "unknown") for row in rows],
        model=[label] * len(rows),
        cell=[str(row["label"]) for row in rows],
        repeat_sd=floor(within, visits, visits_sd, ONE_VISIT),
        run=f"{Path(path).name} ({label})",
        machine=str(attrs.get("machine", "")),
    )
    cells = replace(cells, within_sd=within, visits=visits, visits_sd=visits_sd)
    engine = f"{attrs.get('engine', 'unknown engine')} {attrs.get('engine_version', '')}".strip()
    return Grid(cells, gpu, model, precision, engine, f"{Path(path).name} ({label})", tp)


def _dtype(name: str) -> str:
    return DTYPE.get(str(name), str(name))


def _bill(model: ModelSpec, precision: Precision, row: dict[str, Any], tp: int, asked: Mapping[str, Sequence[float]], gpu: str) -> Bill:
    seqs = round(float(row["decode_seqs_median"]))
    # the engine counts keys attended to, the new token's own included
    context = float(row["decode_context_tokens_median"]) / seqs - 1 if seqs else 0.0
    chunks = [(float(row["chunk_tokens"]), float(row["offset_tokens"]))] * int(row["chunks"])
    bill = iteration_bill(model, grid_shape(model, [context] * seqs, chunks, tp=tp), precision, tp=tp, gpu=gpu)
    return with_idle(bill, model, precision, tp, *contexts_of(row, context, asked))


def visits_of(data: Any, ran: NDArray[np.bool_], rows: Sequence[Mapping[str, Any]]) -> tuple[Array, Array, Array]:
    """Of each cell that ran: the standard error of its median's logarithm by its repeats, how often it was visited (once, where the file
    does not say), and the standard deviation of its visits' logarithms, 0 of a single one.
    """
    within = np.array([repeat_sd(*(float(row[f"step_s_{q}"]) for q in ("p25", "p75", "n"))) for row in rows])
    if "step_s_visits_sd" not in data or "visits" not in data:
        return within, np.ones(len(rows)), np.zeros(len(rows))
    visits, sd = (np.asarray(data[name].values, dtype=float)[ran] for name in ("visits", "step_s_visits_sd"))
    told = (visits > 1) & np.isfinite(sd)
    return within, np.where(told, visits, 1.0), np.where(told, sd, 0.0)


def repeat_sd(low: float, high: float, n: float) -> float:
    """Standard error of the median's logarithm, from the quartiles of n repeats; 0 where they do not tell."""
    if not (0 < low <= high) or n < 2:
        return 0.0
    return MEDIAN_SE * float(np.log(high / low)) / QUARTILE_SPAN / float(np.sqrt(n))
