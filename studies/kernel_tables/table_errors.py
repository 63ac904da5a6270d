"""Errors of the formula on kernel latency tables, by GPU, operation, dtype and size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cost.gemm import gemms_of
from sim.specs.model import ModelSpec
from sim.specs.models import get_model
from studies.kernel_tables.latency_tables import Table
from studies.kernel_tables.rows import Predicted, predicted

Array = NDArray[np.float64]
EDGES = {"bytes": (2**16, 2**20, 2**24, 2**27), "context": (1024, 8192), "tokens": (16, 256, 2048), "rows": (16, 64, 256, 1024)}
# (model, tensor parallelism) and (decodes, their context, tokens of a chunk) of whole layers
LAYERS = (("Llama-3.2-3B", 1), ("Qwen3-8B", 2), ("Qwen3-30B-A3B", 1))
CELLS = {
    "decode": [(batch, context, 0) for batch in (1, 8, 32, 128, 256) for context in (1024, 4096, 16384)],
    "prefill": [(0, 0, tokens) for tokens in (512, 1024, 2048, 8192)],
    "mixed": [(batch, context, tokens) for batch in (8, 64) for context in (1024, 8192) for tokens in (512, 2048)],
}
LAUNCH_BOUND_S = 20e-6  # rows below are the launch's time, not the kernel's


@dataclass(frozen=True, slots=True)
class Part:
    """Errors of one operation's rows over the measured time: median of the absolute value, median with its sign, 90th percentile."""

    gpu: str
    operation: str
    dtype: str
    axis: str
    size: str
    n: int
    median: float
    bias: float
    p90: float


@dataclass(frozen=True, slots=True)
class Passed:
    """Rows of a table that are not predicted: no term, an unknown dtype or kernel, or kernels launched one by one."""

    gpu: str
    table: str
    rows: int
    of: int
    path: str


def layer_errors(tables: Sequence[Table]) -> list[Part]:
    """Errors of a layer's kernels together, in iterations of decodes, of prefill and of both: of models whose every kernel was timed.

    GEMMs (at an engine's flop rate, and at theirs alone), attention and experts of LAYERS. A mixed iteration has as many rows as its chunk
    has tokens, decodes among them.
    """
    parts = []
    for gpu in dict.fromkeys(table.gpu.name for table in tables):
        own = {table.name: table for table in tables if table.gpu.name == gpu}
        for alone, kind in itertools.product((False, True), CELLS):
            sums = [_layer(own, get_model(name), tp, alone, *cell) for name, tp in LAYERS for cell in CELLS[kind]]
            if logs := np.log([after / before for before, after in sums if before]).tolist():
                parts.append(_part(gpu, "layer, alone" if alone else "layer, in engine", "bfloat16", "", kind, np.array(logs)))
    return parts


def _layer(own: Mapping[str, Table], model: ModelSpec, tp: int, alone: bool, batch: int, context: int, chunk: int) -> Array:
    """Seconds of a layer, measured and predicted: zero where a kernel was not measured."""
    (group,) = model.groups
    mixer, mlp, rows = group.mixer, group.mlp, chunk or batch
    assert mixer.kind == "attention"
    heads = {"num_heads": mixer.heads // tp, "num_key_value_heads": mixer.kv_heads // tp, "head_dim": mixer.head_dim, "window_size": 0}
    calls: list[tuple[str, dict[str, float]]] = [("gemm_perf", {"m": rows, "k": g.k, "n": g.n}) for g, _ in gemms_of(model, tp)]
    if batch:
        calls.append(("generation_attention_perf", {**heads, "batch_size": batch, "step": context - 1}))
    if chunk:
        calls.append(("context_attention_perf", {**heads, "batch_size": 1, "isl": chunk, "step": 0}))
    if mlp.kind == "moe":
        experts = {"num_experts": mlp.experts, "topk": mlp.top_k, "inter_size": mlp.intermediate, "moe_tp_size": tp, "moe_ep_size": 1}
        calls.append(("moe_perf", {**experts, "hidden_size": model.hidden, "num_tokens": rows}))
    found = np.array([_call(own[name], columns, alone) if name in own else (0.0, 0.0) for name, columns in calls])
    return found.sum(axis=0) if found.all() else np.zeros(2)


def _call(table: Table, columns: Mapping[str, float], alone: bool) -> tuple[float, float]:
    """Median seconds of the calls in 16 bits with such columns, measured and predicted."""
    kept = np.ones(len(table), dtype=bool)
    for name, value in columns.items():
        kept &= table.number(name, 0.0) == value
    for name in ("gemm_dtype", "moe_dtype", "kv_cache_dtype"):
        kept &= table.text(name, "bfloat16") == "bfloat16"
    found = predicted(table.where(kept), alone)[0] if kept.any() else None
    return (float(np.median(found.measured_s)), float(np.median(found.predicted_s))) if found else (0.0, 0.0)


def errors(tables: Sequence[Table]) -> tuple[list[Part], list[Passed]]:
    """(errors by part, what was passed over of each table). Rows below LAUNCH_BOUND_S are left out."""
    parts: list[Part] = []
    passed: list[Passed] = []
    for table in tables:
        found = predicted(table)
        parts.extend(part for each in found for part in _parts(each))
        if rows := len(table) - sum(len(each.measured_s) for each in found):
            passed.append(Passed(table.gpu.name, table.name, rows, len(table), str(table.path)))
    return parts, passed


def _parts(found: Predicted) -> Iterator[Part]:
    timed, edges = found.measured_s >= LAUNCH_BOUND_S, EDGES[found.axis]
    sizes = np.searchsorted(edges, found.size)
    logs = np.log(found.predicted_s / found.measured_s)
    for dtype in np.unique(found.dtype):
        for i in range(len(edges) + 1):
            of = timed & (found.dtype == dtype) & (sizes == i)
            if of.any():
                size = f"<= {_short(edges[i])}" if i < len(edges) else f"> {_short(edges[-1])}"
                yield _part(found.gpu, found.operation, str(dtype), found.axis, size, logs[of])


def _part(gpu: str, operation: str, dtype: str, axis: str, size: str, logs: Array) -> Part:
    values = (np.median(np.abs(logs)), np.median(logs), np.quantile(np.abs(logs), 0.9))
    median, bias, p90 = (float(np.expm1(value)) for value in values)
    return Part(gpu, operation, dtype, axis, size, len(logs), median, bias, p90)


def _short(edge: int) -> str:
    return f"{edge >> 20}M" if edge >= 2**20 else f"{edge >> 10}K" if edge >= 2**10 else str(edge)
