"""Efficiency curves from our own measurement files: decode cells of an engine grid or of the weight axis, ladders of a served run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibrate.knees.curves import Cell, Curve, curves_from_points
from calibrate.knees.served import served_efficiency
from calibrate.measurement import check_attributes, check_columns, model_of, open_measurement, whole_number
from calibrate.served.runs import SUITE as SERVED
from calibrate.served.runs import read_served
from calibrate.steps.engine_grid import DTYPE, SCHEMA, SUITES
from sim.bill import coefficients, decode_shape
from sim.errors import UsageError
from sim.memory import resident_weight_bytes
from sim.precision import Precision
from sim.specs.gpus import get_gpu

COUNTS = ("batch", "context_tokens")
MOST = 2.0**40  # of anything in a cell
NEEDED = ("kind", "role", "status", "step_s_n", "step_s_median", *COUNTS)
ATTRIBUTES = ("weight_dtype", "kv_dtype", "gpu_name", "model", "model_config")


def read_measured(path: str | Path) -> list[Curve]:
    """Curves of a measurement: one per context that was measured at batch 1 and at another, perhaps none at all (a run of batches alone).

    UsageError when the file is none of ours.
    """
    data = open_measurement(path)
    attrs = data.attrs
    check_attributes(attrs, path, SCHEMA, SUITES, ATTRIBUTES)
    check_columns(data, path, "cell", NEEDED, numbers=("step_s_n", *COUNTS), seconds=("step_s_median",))
    weights, kv = (DTYPE.get(str(attrs[name]), str(attrs[name])) for name in ("weight_dtype", "kv_dtype"))
    precision, gpu = Precision(weights, kv), get_gpu(str(attrs["gpu_name"]))
    model, tp = model_of(attrs, path), whole_number(attrs, "tensor_parallel_size", 1, path)
    c = coefficients(model, precision)
    pick = (data["kind"] == "decode") & (data["role"] == "grid") & (data["status"] == "ok") & (data["step_s_n"] > 0)
    points = []
    for i in np.flatnonzero(pick.values):
        for name in (*COUNTS, "step_s_median"):
            if not 0 < (value := float(data[name].values[i])) < MOST:
                raise UsageError(f"{path}: cell {i + 1}: {name} must be positive and finite: {value:g}")
        context = int(data["context_tokens"].values[i])
        shape = decode_shape(model, 1.0, float(context))
        kv_bytes = shape.decode_context * c.kv_token_bytes + shape.decode_window * c.window_token_bytes
        bytes_ = (resident_weight_bytes(model, precision), float(kv_bytes), float(gpu.memory_bytes * tp))
        cell = Cell(model.name, gpu.name, weights, context, 0, *bytes_, tp)
        points.append((cell, float(data["batch"].values[i]), float(data["step_s_median"].values[i])))
    batches: dict[Cell, set[float]] = {}
    for cell, batch, _ in points:
        batches.setdefault(cell, set()).add(batch)
    whole = {cell for cell, seen in batches.items() if 1.0 in seen and len(seen) > 1}
    kept = [p for p in points if p[0] in whole]
    return curves_from_points(kept, str(path)) if kept else []


def is_served(path: Path) -> bool:
    """Whether a measurement is of a server under load, not of an engine stepped in process."""
    return str(open_measurement(path).attrs.get("suite", "")) == SERVED


def read_served_curves(path: Path) -> list[Curve]:
    """Efficiency under concurrency, from the true-decode windows of a served run's ladders: one curve per prompt length.

    The context of a curve is its prompts': half the answer is read besides, on average. Empty where a run has no ladder.
    """
    run = read_served(path)
    c = coefficients(run.model, run.precision)
    windows: dict[int, dict[float, float]] = {}
    for rung in run.experiments:
        if rung.kind == "ladder" and rung.window_step_s > 0:
            windows.setdefault(int(np.median(rung.prompt_tokens)), {})[float(rung.clients)] = rung.window_step_s
    curves = []
    for context, step_s in sorted(windows.items()):
        clients = sorted(step_s)
        if clients[0] != 1 or len(clients) < 2:
            continue
        shape = decode_shape(run.model, 1.0, float(context))
        kv = shape.decode_context * c.kv_token_bytes + shape.decode_window * c.window_token_bytes
        bytes_ = (resident_weight_bytes(run.model, run.precision), float(kv), float(run.gpu.memory_bytes * run.tp))
        cell = Cell(run.model.name, run.gpu.name, run.precision.weights, context, 0, *bytes_, run.tp)
        # tokens a second of n clients in lock step: n per window
        curves.append(Curve(cell, tuple(clients), tuple(served_efficiency(clients, [n / step_s[n] for n in clients]))))
    return curves
