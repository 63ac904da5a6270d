"""Compositions of iterations for made step-time data: what an engine grid holds, over two models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from calibrate.steps.cells import StepCells, grid_shape, make_cells
from sim.bill import Bill, decode_shape, iteration_bill
from sim.precision import Precision
from sim.specs.models import get_model

MODELS = ("Qwen2.5-7B", "Qwen2.5-3B")
CHOSEN, MEASURED_ON = (384, 432, 448, 464, 512), "H100"
RAGGED, RAGGED_CONTEXTS = (4, 8, 16, 32), (128.0, 32768.0)


def compositions(models: Sequence[str] = MODELS) -> Iterator[tuple[Bill, str, str, str]]:
    """(bill, kind, model, label) over batch, context, prompt and mixed iterations."""
    for name in models:
        model = get_model(name)
        for batch in (1, 8, 32, 128):
            for context in (128, 2048, 16384):
                shape = decode_shape(model, float(batch), float(context))
                yield iteration_bill(model, shape, Precision()), "decode", name, f"{batch}x{context}"
        for tokens in (64, 640, 2048, 8192):  # 640 tokens of 28 heads are a few blocks more than one turn
            for start in (0, 16384):
                shape = grid_shape(model, [], [(tokens, start)])
                yield iteration_bill(model, shape, Precision()), "prefill", name, f"{tokens}@{start}"
        later = grid_shape(model, [], [(64, 16384)], intake=False)
        yield iteration_bill(model, later, Precision()), "prefill", name, "64@16384 later"
        for batch in (8, 64):
            for tokens in (256, 2048):
                shape = grid_shape(model, [2048.0] * batch, [(tokens, 0)])
                yield iteration_bill(model, shape, Precision()), "mixed", name, f"{batch}+{tokens}"
    for name in models:  # equal contexts hardly tell how much of the idle of dealing shows
        for batch in RAGGED:
            shape = grid_shape(get_model(name), np.geomspace(*RAGGED_CONTEXTS, batch).tolist(), [])
            yield iteration_bill(get_model(name), shape, Precision()), "decode", name, f"{batch} ragged"
    for name in models:  # where products were measured: sizes whose kernels are well chosen and sizes whose are not
        for batch in CHOSEN:
            bill = iteration_bill(get_model(name), decode_shape(get_model(name), float(batch), 128.0), Precision(), gpu=MEASURED_ON)
            if bill.choice_known:
                yield bill, "decode", name, f"{batch}x128 chosen"


def step_cells(models: Sequence[str] = MODELS) -> StepCells:
    """The compositions as cells of one second each: their times are to be replaced."""
    bills, kinds, names, labels = zip(*compositions(models), strict=True)
    return make_cells(bills, np.ones(len(bills)), kind=kinds, model=names, cell=labels)
