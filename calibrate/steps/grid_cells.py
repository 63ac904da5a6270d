"""Engine-grid measurements as step-time cells.

A file holds one (GPU, engine, model, dtype): medians of counted iterations per cell, with the composition the engine really ran.
Only grid cells that ran are learnt from; controls and repeats at the end are for drift, not for fitting. Every chunk of a grid is a new
request, whose prompt the host takes in during the iteration: that protocol's time is subtracted here and is no part of the formula.
Where a cell was visited several times, its noise is what visits differ by: a slow host slows all repeats of one visit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.measurement import check_attributes, check_columns, model_of, open_measurement, precision_of, whole_number
from calibrate.steps.iterations import MULTI_GPU, StepCells, make_cells
from calibrate.steps.noise import floor
from sim.cost.batch import BatchShape, mixed_batch
from sim.cost.gemm import HELD_OUT
from sim.cost.work import iteration_work
from sim.errors import UsageError
from sim.quantiles import MEDIAN_SE
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.model import ModelSpec
from sim.specs.precision import Precision

Array = NDArray[np.float64]
SCHEMA, SUITE = "simctl-measurement/1", "engine-grid"
SUITES = (SUITE, "weight-axis")  # a weight axis is a grid of decodes alone
KIND = {"decode": "decode", "ragged": "decode", "prefill": "prefill", "packed": "prefill", "mixed": "mixed"}
SECONDS = ("step_s_median", "step_s_p25", "step_s_p75")
COUNTS = ("decode_seqs_median", "decode_context_tokens_median", "chunks", "chunk_tokens", "offset_tokens")
# of an iteration: far beyond any engine's, and small enough to be laid out one by one
MOST = dict.fromkeys(COUNTS, 2.0**40) | {"decode_seqs_median": 2.0**20, "chunks": 2.0**20}
NEEDED = (*SECONDS, "step_s_n", "label", "kind", "role", "status", *COUNTS)
# Prompt ingestion: seconds of host time per prompt token of the requests that an iteration starts, context placed before the chunk
# included; what vLLM's second model runner takes more, and what several GPUs take more. And what that runner takes more for an iteration
# that carries prefill. All of it is of stepping an engine in process: a served one hides it.
INGESTION_S, RUNNER2_S, TP_S = 70e-9, 65e-9, 109e-9
RUNNER2_PREFILL_S = 0.4e-3
# Worker processes of several GPUs answer later than a model in the engine's own process: so much is left of decodes of a 7B over two H200s
# and of a 14B over two H100s, beside all-reduces as they were served.
WORKERS_S = 0.2e-3
MOST_PROTOCOL = 0.5  # of a step
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
    device: str = ""  # as the driver called it


def read_engine_grid(path: str | Path, gpu: GpuSpec | None = None) -> Grid:
    """Read and check one file. `gpu` stands for a machine that no catalogue knows (a CPU).

    Raises UsageError naming the file and what is wrong with it; OSError when it cannot be read.
    """
    data = open_measurement(path, (*NEEDED, "visits", "step_s_visits_sd"))
    attrs = data.attrs
    check_attributes(attrs, path, SCHEMA, SUITES, ("gpu_name", "model", "weight_dtype"))
    check_columns(data, path, "cell", NEEDED, numbers=("step_s_n", *COUNTS), seconds=SECONDS)
    columns = {name: data[name].values for name in NEEDED}
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
    second_runner = model.second_runner and attrs.get("engine") == "vllm"
    precision = precision_of(attrs)
    tp = whole_number(attrs, "tensor_parallel_size", 1, path)
    within, visits, visits_sd = visits_of(data, ran, rows)
    gpu = gpu or get_gpu(str(attrs["gpu_name"]))
    label = f"{attrs['model']} {precision.weights}" + (f" tp{tp}" if tp > 1 else "")
    shapes = [_shape(model, row) for row in rows]
    cells = make_cells(
        [iteration_work(model, shape, precision, tp=tp, gpu=gpu) for shape in shapes],
        [float(row["step_s_median"]) for row in rows],
        roofline=[iteration_work(model, shape, precision, tp=tp, gpu=replace(gpu, origin=HELD_OUT)) for shape in shapes],
        kind=[MULTI_GPU if tp > 1 and row["kind"] in KIND else KIND.get(str(row["kind"]), "unknown") for row in rows],
        model=[label] * len(rows),
        cell=[str(row["label"]) for row in rows],
        repeat_sd=floor(within, visits, visits_sd, ONE_VISIT),
        run=f"{Path(path).name} ({label})",
        machine=str(attrs.get("machine", "")),
    )
    if len(rows) > 1 and np.ptp(np.log(cells.step_s)) < 1e-6:
        raise UsageError(f"{path}: all step times are equal: zero variance, nothing to learn from")
    token_s = INGESTION_S + RUNNER2_S * second_runner + TP_S * (tp > 1)
    protocol_s = token_s * np.array([float(row["chunks"]) * (row["chunk_tokens"] + row["offset_tokens"]) for row in rows])
    protocol_s += RUNNER2_PREFILL_S * second_runner * np.array([float(row["chunks"] > 0) for row in rows])
    protocol_s += WORKERS_S * (tp > 1)
    step_s = cells.step_s - np.minimum(protocol_s, MOST_PROTOCOL * cells.step_s)
    cells = replace(cells, step_s=step_s, within_sd=within, visits=visits, visits_sd=visits_sd)
    engine = f"{attrs.get('engine', 'unknown engine')} {attrs.get('engine_version', '')}".strip()
    return Grid(cells, gpu, model, precision, engine, f"{Path(path).name} ({label})", tp, str(attrs["gpu_name"]))


def grid_shape(model: ModelSpec, contexts: Iterable[float], chunks: Iterable[tuple[float, float]]) -> BatchShape:
    """An iteration of an engine grid: decodes at `contexts`, and chunks of (tokens, tokens placed before them), each of which samples."""
    return mixed_batch(model, map(float, contexts), [(float(tokens), float(start + tokens), 1.0) for tokens, start in chunks])


def _shape(model: ModelSpec, row: Mapping[str, Any]) -> BatchShape:
    seqs = round(float(row["decode_seqs_median"]))
    # the engine counts keys attended to, the new token's own included
    context = float(row["decode_context_tokens_median"]) / seqs - 1 if seqs else 0.0
    chunks = [(float(row["chunk_tokens"]), float(row["offset_tokens"]))] * int(row["chunks"])
    return grid_shape(model, [context] * seqs, chunks)


def visits_of(data: Any, ran: NDArray[np.bool_], rows: Sequence[Mapping[str, Any]]) -> tuple[Array, Array, Array]:
    """Of each cell that ran: the standard error of its median's logarithm by its repeats, how often it was visited (once, where the file
    does not say), and the standard deviation of its visits' logarithms, 0 of a single one.
    """
    within = np.array([repeat_sd(*(float(row[f"step_s_{q}"]) for q in ("p25", "p75", "n"))) for row in rows])
    if "step_s_visits_sd" not in data or "visits" not in data:
        return within, np.ones(len(rows)), np.zeros(len(rows))
    visits, sd = (np.asarray(data[name].values, dtype=float)[ran] for name in ("visits", "step_s_visits_sd"))
    known = (visits > 1) & np.isfinite(sd)
    return within, np.where(known, visits, 1.0), np.where(known, sd, 0.0)


def repeat_sd(low: float, high: float, n: float) -> float:
    """Standard error of the median's logarithm, from the quartiles of n repeats; 0 where they do not tell."""
    if not (0 < low <= high) or n < 2:
        return 0.0
    return MEDIAN_SE * float(np.log(high / low)) / QUARTILE_SPAN / float(np.sqrt(n))
