"""Efficiency curves: what a measurement file says, one curve per (model, GPU, dtype, context, decode length)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from calibrate.logs.read import Row, csv_rows
from sim.closed_form.knee import Knee, continuous_knee, discrete_knee
from sim.cost.batch import decode_batch
from sim.cost.coefficients import coefficients
from sim.deployment.memory import resident_weight_bytes
from sim.errors import SimctlError, UsageError
from sim.files import text_of
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.model import ModelSpec
from sim.specs.models import get_model
from sim.specs.precision import Precision

REQUIRED = ("model", "gpu", "context_tokens", "batch")
SPEEDS = ("step_s", "decode_per_req_tps", "decode_agg_tps")
LONGEST_CONTEXT = 2**40  # tokens
MIXED_UNITS = 100.0  # no step is this much shorter than one of a smaller batch, or longer by more than the batch is


@dataclass(frozen=True, slots=True)
class CurveCell:
    """Model, GPU and context of a curve, with the bytes the predictors need.

    `kv_bytes` is the KV read per request per step at this context; `memory_bytes` the memory of all GPUs serving it.
    """

    model: str
    gpu: str
    weight_dtype: str
    context_tokens: int
    decode_tokens: int
    weight_bytes: float
    kv_bytes: float
    memory_bytes: float
    tp: int = 1  # GPUs of a replica

    def n_max(self, utilization: float = 0.9) -> float:
        """Requests whose KV fits beside the weights; activations are not counted."""
        return (utilization * self.memory_bytes - self.weight_bytes) / self.kv_bytes


@dataclass(frozen=True, slots=True)
class EfficiencyCurve:
    """Per-request efficiency t(1)/t(B) on an ascending ladder of batches that starts at 1; `runs` is of how many measurements."""

    cell: CurveCell
    batches: tuple[float, ...]
    etas: tuple[float, ...]
    runs: int = 1

    def knee(self, tau: float = 0.65) -> Knee:
        return continuous_knee(self.batches, self.etas, tau)

    def discrete_knee(self, tau: float = 0.65) -> Knee:
        return discrete_knee(self.batches, self.etas, tau)


def cell_of(model: ModelSpec, gpu: GpuSpec, precision: Precision, context_tokens: int, tp: int = 1) -> CurveCell:
    """The cell of a model on `tp` GPUs: resident weights, and the KV that a decode step reads of one request.

    Sliding-window layers count at most their window.
    """
    c, shape = coefficients(model, precision), decode_batch(model, 1.0, float(context_tokens))
    kv = shape.decode_context * c.kv_token_bytes + shape.decode_window * c.window_token_bytes
    bytes_ = (resident_weight_bytes(model, precision), float(kv), float(gpu.memory_bytes * tp))
    return CurveCell(model.name, gpu.name, precision.weights, context_tokens, 0, *bytes_, tp)


def read_curves(path: str | Path) -> list[EfficiencyCurve]:
    """Curves of a CSV with columns model, gpu, context_tokens, batch, and a speed.

    The speed is one of step_s, decode_per_req_tps, decode_agg_tps. Optional columns: weight_dtype, decode_tokens, and
    weight_bytes, kv_bytes, memory_bytes, which otherwise come from the catalogues. Repeats of a batch are reduced to their
    median. Raises UsageError naming the line on anything malformed, and when a curve lacks batch 1 or a larger one.
    """
    columns, rows = csv_rows(text_of(Path(path), 1 << 24), str(path))
    missing = [name for name in REQUIRED if name not in columns]
    speeds = [name for name in SPEEDS if name in columns]
    if missing or len(speeds) != 1:
        raise UsageError(f"{path}: needs columns {', '.join(REQUIRED)} and exactly one of {', '.join(SPEEDS)}")
    points = [(_cell(row, f"{path}:{line}"), *_point(row, speeds[0], f"{path}:{line}")) for line, row in rows]
    return curves_from_points(points, str(path))


def curves_from_points(points: Iterable[tuple[CurveCell, float, float]], where: str) -> list[EfficiencyCurve]:
    """Curves of (cell, batch, step time in s) points; repeats are reduced to their median. Errors as `read_curves`, and where times are all
    the same or in several units.
    """
    steps: dict[CurveCell, dict[float, list[float]]] = {}
    for cell, batch, step_s in points:
        steps.setdefault(cell, {}).setdefault(batch, []).append(step_s)
    curves = []
    for cell, ladder in steps.items():
        batches = sorted(ladder)
        if batches[0] != 1 or len(batches) < 2:
            raise UsageError(f"{where}: {cell.model} at {cell.context_tokens} tokens: needs batch 1 and a larger one")
        times = {batch: median(ladder[batch]) for batch in batches}
        for before, batch in pairwise(batches):
            if not 1 / MIXED_UNITS < times[batch] / times[before] < MIXED_UNITS * batch / before:
                raise UsageError(
                    f"{where}: {cell.model} at {cell.context_tokens} tokens: a step of batch {batch:g} takes {times[batch]:g} s and one of "
                    f"{before:g} {times[before]:g} s: mixed units?"
                )
        curves.append(EfficiencyCurve(cell, tuple(batches), tuple(times[1.0] / times[batch] for batch in batches)))
    if not curves:
        raise UsageError(f"{where}: no measurements")
    if len({time for ladder in steps.values() for same in ladder.values() for time in same}) == 1:
        raise UsageError(f"{where}: all step times are equal: zero variance, no efficiency to tell")
    return curves


def pooled(curves: Iterable[EfficiencyCurve]) -> list[EfficiencyCurve]:
    """One curve per cell: of several runs the median efficiency at every batch that one of them tried, so that a cell counts once.

    Efficiencies are pooled and not times: each run is divided by its own batch 1, on its own host.
    """
    found: dict[CurveCell, list[EfficiencyCurve]] = {}
    for curve in curves:
        found.setdefault(curve.cell, []).append(curve)
    out = []
    order = sorted(found, key=lambda c: (c.model, c.gpu, c.weight_dtype, c.tp, c.context_tokens, c.decode_tokens))
    for cell in order:
        runs = found[cell]
        at: dict[float, list[float]] = {}
        for run in runs:
            for batch, eta in zip(run.batches, run.etas, strict=True):
                at.setdefault(batch, []).append(eta)
        batches = sorted(at)
        out.append(EfficiencyCurve(cell, tuple(batches), tuple(median(at[b]) for b in batches), sum(run.runs for run in runs)))
    return out


def _cell(row: Row, where: str) -> CurveCell:
    model, gpu = row["model"], row["gpu"]
    if not model or not gpu:
        raise UsageError(f"{where}: {'model' if not model else 'gpu'} is missing")
    context = int(_positive(row, "context_tokens", where))
    if context > LONGEST_CONTEXT:
        raise UsageError(f"{where}: context_tokens is beyond any model's: {row['context_tokens']}")
    decode = int(_positive(row, "decode_tokens", where)) if row.get("decode_tokens") else 0
    dtype, gpu = row.get("weight_dtype") or "bf16", _catalogue_name(gpu)
    names = ("weight_bytes", "kv_bytes", "memory_bytes")
    given = [row.get(name) for name in names]
    if any(given) and not all(given):
        raise UsageError(f"{where}: give all of weight_bytes, kv_bytes, memory_bytes, or none")
    if not any(given):
        return replace(cell_of(get_model(model), get_gpu(gpu), Precision(dtype), context), model=model, decode_tokens=decode)
    weight, kv, memory = (_positive(row, name, where) for name in names)
    return CurveCell(model, gpu, dtype, context, decode, weight, kv, memory)


def _catalogue_name(gpu: str) -> str:
    """The catalogue's name of a GPU, whatever alias the file has for it; one that it does not know keeps its own."""
    try:
        return get_gpu(gpu).name
    except SimctlError:
        return gpu


def _point(row: Row, speed: str, where: str) -> tuple[float, float]:
    batch, value = _positive(row, "batch", where), _positive(row, speed, where)
    if speed == "step_s":
        return batch, value
    return batch, 1 / value if speed == "decode_per_req_tps" else batch / value


def _positive(row: Row, name: str, where: str) -> float:
    try:
        value = float(row[name] or "")
    except ValueError:
        raise UsageError(f"{where}: {name} is not a number: {row[name]!r}") from None
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{where}: {name} must be positive and finite: {row[name]!r}")
    return value
