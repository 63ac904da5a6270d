"""Compositions of iterations for made step-time data: what an engine grid holds, over two models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from calibrate.steps.grid_cells import grid_shape
from calibrate.steps.iterations import StepCells, make_cells
from sim.cost.batch import decode_batch
from sim.cost.work import Work, iteration_work
from sim.specs.models import get_model
from sim.specs.precision import Precision

MODELS = ("Qwen2.5-7B", "Qwen2.5-3B")
RAGGED, RAGGED_CONTEXTS = (4, 8, 16, 32), (128.0, 32768.0)


def compositions(models: Sequence[str] = MODELS) -> Iterator[tuple[Work, str, str, str]]:
    """(work, kind, model, label) over batch, context, prompt and mixed iterations."""
    for name in models:
        model = get_model(name)
        for batch in (1, 8, 32, 128):
            for context in (128, 2048, 16384):
                shape = decode_batch(model, float(batch), float(context))
                yield iteration_work(model, shape, Precision()), "decode", name, f"{batch}x{context}"
        for tokens in (64, 640, 2048, 8192):  # 640 tokens of 28 heads are a few blocks more than one turn
            for start in (0, 16384):
                shape = grid_shape(model, [], [(tokens, start)])
                yield iteration_work(model, shape, Precision()), "prefill", name, f"{tokens}@{start}"
        for batch in (8, 64):
            for tokens in (256, 2048):
                shape = grid_shape(model, [2048.0] * batch, [(tokens, 0)])
                yield iteration_work(model, shape, Precision()), "mixed", name, f"{batch}+{tokens}"
    for name in models:  # contexts that differ
        for batch in RAGGED:
            shape = grid_shape(get_model(name), np.geomspace(*RAGGED_CONTEXTS, batch).tolist(), [])
            yield iteration_work(get_model(name), shape, Precision()), "decode", name, f"{batch} ragged"


def step_cells(models: Sequence[str] = MODELS) -> StepCells:
    """The compositions as cells of one second each: their times are to be replaced."""
    works, kinds, names, labels = zip(*compositions(models), strict=True)
    return make_cells(works, np.ones(len(works)), kind=kinds, model=names, cell=labels)
