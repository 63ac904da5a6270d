"""Cells that an engine grid could measure: their work, what measuring each would take, and the file that asks for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.steps.grid_cells import KIND, grid_shape
from calibrate.steps.iterations import StepCells, make_cells
from calibrate.steps.step_model import log_times
from hw.cells import Cell, engine_grid
from hw.engines.shapes import SHAPES
from hw.suites.engine_grid import CHUNK_REPEATS, DECODE_REPEATS, WARM, checks, repeats
from sim.cost.rates import Rates
from sim.cost.work import iteration_work
from sim.errors import UsageError
from sim.files import write_text
from sim.specs.gpu import GpuSpec
from sim.specs.hf_config import spec_from_config
from sim.study.deployment import Deployment, Limits, plan_engine

Array = NDArray[np.float64]
SETUP_S = 0.02  # placing contexts and draining: what the packaged grids took beyond their iterations, a cell
# What `simctl measure` runs with unless set otherwise.
SERVER_LIMITS: dict[str, Any] = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}


@dataclass(frozen=True)
class Candidates:
    """Cells to choose from, in the grid's own order: what to ask for, their work, and seconds for each [cell] and for the checks."""

    shape: str  # model as `simctl measure` names it
    grid: tuple[Cell, ...]
    cells: StepCells
    cost_s: Array
    checks_s: float


def measurable_shape(model: Any) -> tuple[str, Any]:
    """(name, spec) of the shape `simctl measure` can run that is `model`, or the one nearest in size. UsageError when there is none."""
    specs = {name: spec_from_config(config, name, "shape") for name, config in SHAPES.items() if not name.startswith("tiny")}
    for name, spec in specs.items():
        if (spec.hidden, spec.vocab, spec.groups) == (model.hidden, model.vocab, model.groups):
            return name, spec
    kinds = {g.mlp.kind for g in model.groups}
    similar = {name: spec for name, spec in specs.items() if {g.mlp.kind for g in spec.groups} == kinds}
    if not similar:
        raise UsageError(f"no shape that `simctl measure` knows is like {model.name}")
    name = min(similar, key=lambda n: abs(float(np.log(similar[n].params / model.params))))
    return name, similar[name]


def candidates(model: Any, gpu: Any, precision: Any, rates: Rates) -> Candidates:
    """The engine grid of `model` on `gpu`, costed at `rates` (floats)."""
    name, spec = measurable_shape(model)
    deployment = Deployment(spec, gpu, precision, limits=Limits(**SERVER_LIMITS))
    config, _ = plan_engine(deployment)
    longest = min(spec.max_context, 131072)
    grid = engine_grid(
        np.random.default_rng(0),
        token_budget=config.max_num_batched_tokens,
        fits=lambda cell: sum(cell.contexts) + sum(o + t for o, t in cell.chunks) <= 0.95 * config.kv_capacity_tokens,
        max_context=longest,
        max_seqs=config.max_num_seqs,
    )
    if not grid:
        raise UsageError(f"no cell of an engine grid fits {name} on {gpu.name}")
    on = deployment.gpu
    cells = as_cells(grid, name, spec, precision, on)
    control, anchors = checks()
    checked = (anchors[0], *anchors, control)
    again = as_cells(checked, name, spec, precision, on)
    return Candidates(
        name,
        tuple(grid),
        cells,
        cost_s(grid, cells, rates, spec, precision, on),
        float(cost_s(checked, again, rates, spec, precision, on).sum()),
    )


def as_cells(grid: Any, name: str, spec: Any, precision: Any, gpu: GpuSpec) -> StepCells:
    """The cells' work as a table of step cells; their times (1 s) are unknown and must not be read."""
    works = [iteration_work(spec, grid_shape(spec, c.contexts, [(t, o) for o, t in c.chunks]), precision, gpu=gpu) for c in grid]
    label = f"{name} {precision.weights}"
    return make_cells(
        works, np.ones(len(works)), kind=[KIND[c.kind] for c in grid], model=[label] * len(works), cell=[c.label for c in grid]
    )


def cost_s(grid: Any, cells: StepCells, rates: Rates, spec: Any, precision: Any, gpu: GpuSpec) -> Array:
    """Seconds to measure each cell under the grid's protocol, by the formula at `rates`."""
    step = np.exp(log_times(cells, rates)[0])
    decodes = [Cell("decode", c.contexts) for c in grid if c.contexts and c.chunks]
    decode_s = np.exp(log_times(as_cells(decodes, "", spec, precision, gpu), rates)[0]) if decodes else ()
    decode = dict(zip((c.contexts for c in decodes), decode_s, strict=True))
    out = []
    for cell, seconds in zip(grid, step, strict=True):
        if not cell.chunks:
            out.append((WARM + repeats(seconds, DECODE_REPEATS)) * seconds)
        else:
            between = decode.get(cell.contexts, 0.0)
            out.append((repeats(seconds, CHUNK_REPEATS) + 1) * (seconds + between) + (WARM * between if cell.contexts else 0.0))
    return np.array(out) + SETUP_S


def write_cells(path: Path, shape: str, chosen: list[Cell], why: str) -> None:
    """A cells file for `simctl measure --cells`, whole or not at all."""
    rows = ",\n".join("  " + json.dumps({"kind": c.kind, "contexts": c.contexts, "chunks": c.chunks}) for c in chosen)
    text = f'{{"schema": "simctl-cells/1", "model": {json.dumps(shape)}, "why": {json.dumps(why)},\n "cells": [\n{rows}\n]}}\n'
    write_text(path, text)
