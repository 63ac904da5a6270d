"""The suite products calls `F.linear`, an engine its compiled graph: at every profiled number of rows both run the same kernels."""

from pathlib import Path

import numpy as np
import pytest

from hw.artifact import load
from hw.engines.shapes import SHAPES
from sim.bill import CAPTURED

MEASURED = Path(__file__).parents[2] / "scenarios" / "data" / "measured" / "h100"
TOLD = 90  # letters of a name that both files keep


def kernels_of(model: str) -> dict[int, set[str]]:
    """By rows, what computes the model's four products alone."""
    data = load(MEASURED / "products.nc", "products")
    found: dict[int, set[str]] = {}
    for layers, rows, names in zip(data.layers.values.astype(str), data.rows.values, data.kernel_names.values.astype(str), strict=True):
        if any(use.startswith(f"{model} ") for use in layers.split(", ")) and names:
            found.setdefault(int(rows), set()).add(next(name for name in names.split(" + ") if name.startswith("nvjet"))[:TOLD])
    return found


@pytest.mark.parametrize("model", ["llama3.1-8b", "qwen2.5-7b", "qwen3-14b"])
def test_a_profiled_iteration_runs_the_kernel_of_each_product(model: str) -> None:
    alone, data = kernels_of(model), load(MEASURED / f"profile_{model}.nc", "profile")
    names = np.array([name[:TOLD] for name in data.kernel_name.values.astype(str)])
    rows = (data.decode_seqs.values + data.prefill_tokens.values).astype(int)
    in_layers = data.calls.values >= SHAPES[model]["num_hidden_layers"]
    held = set()
    for size in set(rows.tolist()):
        computed = min((captured for captured in CAPTURED if captured >= size), default=size)  # a graph pads to its size
        if computed in alone:
            ran = set(names[in_layers[rows == size].all(axis=0)])
            assert alone[computed] <= ran, (size, computed)
            held.add(size)
    assert len(held) >= 30
