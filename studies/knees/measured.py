"""Efficiency curves from our own measurement files: decode cells of an engine grid or of the weight axis, ladders of a served run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibrate.measurement import check_attributes, check_columns, model_of, open_measurement, precision_of, whole_number
from calibrate.served.runs import SUITE as SERVED
from calibrate.served.runs import read_served
from calibrate.steps.grid_cells import SCHEMA, SUITES
from sim.errors import UsageError
from sim.specs.gpus import get_gpu
from studies.knees.curves import CurveCell, EfficiencyCurve, cell_of, curves_from_points

COUNTS = ("batch", "context_tokens")
MOST = 2.0**40  # of anything in a cell
NEEDED = ("kind", "role", "status", "step_s_n", "step_s_median", *COUNTS)
ATTRIBUTES = ("weight_dtype", "kv_dtype", "gpu_name", "model", "model_config")


def read_measured(path: str | Path) -> list[EfficiencyCurve]:
    """Curves of a measurement: one per context that was measured at batch 1 and at another, perhaps none at all (a run of batches alone).

    UsageError when the file is none of ours.
    """
    data = open_measurement(path)
    attrs = data.attrs
    check_attributes(attrs, path, SCHEMA, SUITES, ATTRIBUTES)
    check_columns(data, path, "cell", NEEDED, numbers=("step_s_n", *COUNTS), seconds=("step_s_median",))
    precision, gpu = precision_of(attrs), get_gpu(str(attrs["gpu_name"]))
    model, tp = model_of(attrs, path), whole_number(attrs, "tensor_parallel_size", 1, path)
    pick = (data["kind"] == "decode") & (data["role"] == "grid") & (data["status"] == "ok") & (data["step_s_n"] > 0)
    points = []
    for i in np.flatnonzero(pick.values):
        for name in (*COUNTS, "step_s_median"):
            if not 0 < (value := float(data[name].values[i])) < MOST:
                raise UsageError(f"{path}: cell {i + 1}: {name} must be positive and finite: {value:g}")
        cell = cell_of(model, gpu, precision, int(data["context_tokens"].values[i]), tp)
        points.append((cell, float(data["batch"].values[i]), float(data["step_s_median"].values[i])))
    batches: dict[CurveCell, set[float]] = {}
    for cell, batch, _ in points:
        batches.setdefault(cell, set()).add(batch)
    whole = {cell for cell, seen in batches.items() if 1.0 in seen and len(seen) > 1}
    kept = [p for p in points if p[0] in whole]
    return curves_from_points(kept, str(path)) if kept else []


def is_served(path: Path) -> bool:
    """Whether a measurement is of a server under load, not of an engine stepped in process."""
    return str(open_measurement(path, ()).attrs.get("suite", "")) == SERVED


def read_served_curves(path: Path) -> list[EfficiencyCurve]:
    """Efficiency under concurrency, from the true-decode windows of a served run's ladders: one curve per prompt length.

    The context of a curve is its prompts': half the answer is read besides, on average. Empty where a run has no ladder.
    """
    run = read_served(path)
    windows: dict[int, dict[float, float]] = {}
    for rung in run.experiments:
        if rung.kind == "ladder" and rung.window_step_s > 0:
            windows.setdefault(int(np.median(rung.prompt_tokens)), {})[float(rung.clients)] = rung.window_step_s
    curves = []
    for context, step_s in sorted(windows.items()):
        if 1.0 in step_s and len(step_s) > 1:
            cell = cell_of(run.model, run.gpu, run.precision, context, run.tp)
            # tokens a second of n clients in lock step: n per window
            curves.append(EfficiencyCurve(cell, tuple(sorted(step_s)), tuple(step_s[1.0] / step_s[n] for n in sorted(step_s))))
    return curves
