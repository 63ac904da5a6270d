"""`python -m studies.predict_sparse_served`: decode steps of vLLM with our sparse attention as its backend, as CSV, before they are run.

As `what-if --stack vllm+kernels` answers: the engine's step with our selection in the place of its attention (`dense_below` 0).
Rows of paths without `-0` were of an earlier formula, in which the engine's attention was launched with nothing to read.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence

import click
import numpy as np

from hw.engines.shapes import shape
from sim.closed_form.what_if import WhatIf, step_seconds
from sim.errors import UsageError
from sim.specs.attention_policy import blocks, dense
from sim.specs.decode_stack import SERVED_KERNELS
from sim.specs.gpus import get_gpu
from sim.specs.hf_config import spec_from_config
from sim.study.deployment import Deployment, Limits

CELLS = {
    "qwen2.5-7b": [
        *((1, c) for c in (8192, 16384, 32768, 65536, 131072, 262144, 500000)),
        *((2, c) for c in (32768, 131072, 262144)), *((4, c) for c in (32768, 131072, 240000)),
        *((8, c) for c in (16384, 32768, 65536, 120000)),
        *((16, c) for c in (16384, 32768, 60000)), *((32, c) for c in (8192, 16384, 30000)),
    ],
    "qwen2.5-7b-14-layers": [(1, 262144), (4, 262144), (8, 131072), (8, 240000), (8, 262144), (32, 60000)],
}  # fmt: skip
MORE = {"H200": {"qwen2.5-7b": [(1, 100000), (4, 24000), (4, 500000), (8, 262144), (16, 131072), (32, 60000)]}}  # what its memory holds
COLUMNS = ("gpu", "model", "path", "batch", "context_tokens", "k_blocks", "step_ms", "step_low_ms", "step_high_ms")


def steps_s(d: Deployment, batch: int, context: int, k: int, served: bool, draws: int = 500) -> np.ndarray:
    """Seconds of a decode step at every draw; k = 0: dense."""
    question = WhatIf(d, context, stack=SERVED_KERNELS, served=served, draws=draws)
    policy = question.runner.policy(blocks(k) if k else dense())
    return np.asarray(step_seconds(question, policy, batch, context, question.rates().draws, np))


def deployment(gpu: str, model: str) -> Deployment:
    """A shape that reads any context, on one GPU."""
    spec = spec_from_config({**shape(model), "max_position_embeddings": 2**20}, "measured", "a shape")
    return Deployment(spec, get_gpu(gpu), limits=Limits(max_num_seqs=32, max_num_batched_tokens=8192))


def rows(gpu: str, ks: Sequence[int], served: bool) -> Iterator[dict[str, object]]:
    """One row per model, cell and k."""
    for model, cells in CELLS.items():
        d = deployment(gpu, model)
        for batch, context in [*cells, *MORE.get(gpu, {}).get(model, [])]:
            for k in (0, *ks):
                low, middle, high = 1e3 * np.quantile(steps_s(d, batch, context, k, served), [0.05, 0.5, 0.95])
                path = "served-0" if served else "in-process-0"
                row = (gpu, model, path, batch, context, k, f"{middle:.3f}", f"{low:.3f}", f"{high:.3f}")
                yield dict(zip(COLUMNS, row, strict=True))


@click.command()
@click.option("--gpu", default="H100", show_default=True)
@click.option("--k", "ks", default="8,32", show_default=True, help="Selected blocks, comma-separated.")
@click.option("--served/--in-process", default=False, show_default=True)
def main(gpu: str, ks: str, served: bool) -> None:
    """Print the predictions."""
    try:
        wanted = [int(k) for k in ks.split(",")]
    except ValueError:
        raise UsageError(f"--k: {ks!r} is not a list of numbers") from None
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(gpu, wanted, served))


if __name__ == "__main__":
    main()
