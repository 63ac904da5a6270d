"""Efficiency curves from our own measurement files: decode cells of an engine grid or of the weight axis."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibrate.knees.curves import Cell, Curve, curves_from_points
from calibrate.measurement import check_attributes, check_columns, model_of, open_measurement
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
    """Curves of a measurement: one per context that was measured at batch 1 and at another. UsageError when it is none of ours."""
    data = open_measurement(path)
    attrs = data.attrs
    check_attributes(attrs, path, SCHEMA, SUITES, ATTRIBUTES)
    check_columns(data, path, "cell", NEEDED, numbers=("step_s_n", *COUNTS), seconds=("step_s_median",))
    weights, kv = (DTYPE.get(str(attrs[name]), str(attrs[name])) for name in ("weight_dtype", "kv_dtype"))
    precision, gpu = Precision(weights, kv), get_gpu(str(attrs["gpu_name"]))
    model = model_of(attrs, path)
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
        bytes_ = (resident_weight_bytes(model, precision), float(kv_bytes), float(gpu.memory_bytes))
        cell = Cell(model.name, gpu.name, weights, context, 0, *bytes_)
        points.append((cell, float(data["batch"].values[i]), float(data["step_s_median"].values[i])))
    batches: dict[Cell, set[float]] = {}
    for cell, batch, _ in points:
        batches.setdefault(cell, set()).add(batch)
    whole = {cell for cell, seen in batches.items() if 1.0 in seen and len(seen) > 1}
    return curves_from_points([p for p in points if p[0] in whole], str(path))
