"""What suites that step an engine in this process share: start, measure, write, close; attributes, the engine's limits, cells of a file."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hw import provenance
from hw.artifact import write
from hw.cell_file import read_cells
from hw.cells import Cell, within
from hw.engines import vllm_inprocess
from hw.engines.shapes import shape
from hw.journal import Journal
from hw.pace import Budget
from hw.signals import terminate_as_interrupt
from hw.suites import floor
from sim.errors import UsageError

if TYPE_CHECKING:
    import xarray as xr

# No torch.compile: hand-written kernels instead of generated ones, full CUDA graphs for decodes. Starts in half the time.
FAST_START = {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}
SCALE = {"cuda": 1, "cpu": 16}  # what every length of a grid is divided by


class Suite(NamedTuple):
    """What a suite brings to `run`."""

    called: str  # what it measures, in the plural: cells
    plan: Callable[[vllm_inprocess.VllmEngine, Mapping[str, Any]], Sequence[Any]]  # of the engine that is up and the attributes so far
    measure: Callable[[vllm_inprocess.VllmEngine, Sequence[Any], Budget, np.random.Generator], dict[str, Any]]  # keeps a journal
    dataset: Callable[[dict[str, Any]], xr.Dataset | None]  # of the journal and these attributes; None when nothing was measured
    tables: Mapping[str, str]  # dimensions that become a CSV, and how its name ends


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any], suite: Suite) -> list[Path]:
    """Floors, the engine's start, the suite, files. However it ends, what the journal holds is written, and the engine closed."""
    attrs = attributes(job, facts)
    engine, paths = None, []
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine = start(job, Path(folder))
            attrs |= engine.describe()
            wanted = suite.plan(engine, attrs)
            print(f"{job.stem}: engine up in {engine.load_s:.0f} s, {len(wanted)} {suite.called}", file=sys.stderr, flush=True)
            budget = Budget(job.budget_s)
            with terminate_as_interrupt():
                attrs |= suite.measure(engine, wanted, budget, np.random.default_rng(job.seed + 1))
            attrs["measuring_s"] = round(budget.spent_s, 1)
        attrs |= provenance.after(job.device)
    finally:
        data = suite.dataset(attrs)
        if data is not None:
            paths = write(data, out / f"{job.stem}.nc", suite.tables)
            if attrs["finished"]:
                journal.path.unlink(missing_ok=True)
        if engine is not None:
            engine.close()
    return paths


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
