"""What suites that step an engine in this process share: attributes, the engine's start, its limits, cells of a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hw.cell_file import read_cells
from hw.cells import Cell, within
from hw.engines import vllm_inprocess
from hw.engines.shapes import shape
from hw.suites import floor
from sim.errors import UsageError

# No torch.compile: hand-written kernels instead of generated ones, full CUDA graphs for decodes. Starts in half the time.
FAST_START = {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}
SCALE = {"cuda": 1, "cpu": 16}  # what every length of a grid is divided by


def attributes(job: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """Provenance, the floors of this process, and what is measured. Raises UsageError without a model."""
    if job.model is None:
        raise UsageError(f"{job.suite} needs a model")
    config = shape(job.model)
    return {
        **facts,
        **floor.headline(floor.measure(job.device, quick=True)),
        "model": job.model,
        "model_config": json.dumps(config),
        "weight_dtype": job.quantization or config["torch_dtype"],
        "kv_dtype": config["torch_dtype"],
        "tensor_parallel_size": job.tensor_parallel,
        "fast_start": int(job.fast_start),
        "seed": job.seed,
        "finished": 0,
    }


def start(job: Any, folder: Path) -> vllm_inprocess.VllmEngine:
    """The job's engine, its model written under `folder`."""
    return vllm_inprocess.start(
        job.model, folder, device=job.device, seed=job.seed, quantization=job.quantization,
        tensor_parallel=job.tensor_parallel, max_num_seqs=job.max_num_seqs, max_num_batched_tokens=job.max_num_batched_tokens,
        extra=FAST_START if job.fast_start else None,
    )  # fmt: skip


def limits(job: Any, max_model_len: int) -> dict[str, int]:
    """The engine's limits, by the names that `hw.cells` takes."""
    return {"max_context": max_model_len, "max_seqs": job.max_num_seqs, "token_budget": job.max_num_batched_tokens}


def asked(job: Any, fits: Callable[[Cell], bool], bounds: dict[str, int]) -> list[Cell]:
    """The cells of the job's file that this engine takes; those it does not are named on stderr. Raises UsageError when none is left."""
    _, wanted = read_cells(Path(job.cells))
    cells = within(wanted, bounds["token_budget"], fits, bounds["max_context"], bounds["max_seqs"])
    for cell in wanted:
        if cell not in cells:
            print(f"{job.stem}: {cell.label} does not fit this engine's limits: left out", file=sys.stderr, flush=True)
    if not cells:
        raise UsageError(f"{job.cells}: none of its {len(wanted)} cells fits this engine's limits")
    return cells
