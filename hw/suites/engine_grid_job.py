"""The engine-grid suite as a job: floors, engine, grid, files."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hw import provenance
from hw.artifact import write
from hw.cell_file import read_cells
from hw.cells import Cell, engine_grid, weight_axis, within
from hw.engines import vllm_inprocess
from hw.engines.shapes import shape
from hw.journal import Journal, read_journal
from hw.pace import Budget
from hw.signals import terminate_as_interrupt
from hw.suites import engine_grid as suite
from hw.suites import floor
from hw.suites.engine_grid_table import dataset
from sim.errors import UsageError

# No torch.compile: hand-written kernels instead of generated ones, full CUDA graphs for decodes. Starts in half the time.
FAST_START = {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    if job.model is None:
        raise UsageError("engine-grid needs a model")
    config = shape(job.model)
    attrs: dict[str, Any] = facts | floor.headline(floor.measure(job.device, quick=True))
    attrs |= {
        "model": job.model,
        "model_config": json.dumps(config),
        "weight_dtype": job.quantization or config["torch_dtype"],
        "kv_dtype": config["torch_dtype"],
        "tensor_parallel_size": job.tensor_parallel,
        "fast_start": int(job.fast_start),
        "seed": job.seed,
        "finished": 0,
    }
    engine = None
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine = vllm_inprocess.start(
                job.model, Path(folder), device=job.device, seed=job.seed, quantization=job.quantization,
                tensor_parallel=job.tensor_parallel, max_num_seqs=job.max_num_seqs, max_num_batched_tokens=job.max_num_batched_tokens,
                extra=FAST_START if job.fast_start else None,
            )  # fmt: skip
            attrs |= engine.describe()
            journal.add("attrs", attrs=attrs)
            limits = {"max_context": attrs["max_model_len"], "max_seqs": job.max_num_seqs, "token_budget": job.max_num_batched_tokens}
            scale = 1 if job.device == "cuda" else 16
            if job.suite == "weight-axis":
                cells = weight_axis(fits=engine.fits, **limits)
            elif job.cells:
                cells = _asked(job, engine.fits, limits)
            else:
                cells = engine_grid(np.random.default_rng(job.seed), fits=engine.fits, scale=scale, **limits)
            print(f"{job.stem}: engine up in {engine.load_s:.0f} s, {len(cells)} cells", file=sys.stderr, flush=True)
            budget = Budget(job.budget_s)
            with terminate_as_interrupt():
                attrs |= suite.measure(engine, cells, journal, budget, np.random.default_rng(job.seed + 1), job.stem, scale)
            attrs["measuring_s"] = round(budget.spent_s, 1)
        if job.device == "cuda":
            attrs |= {f"after_{k}": v for k, v in provenance.query_gpus()[0].items() if k.startswith(("clock_sm", "temp", "power_w"))}
    finally:
        paths = []
        cells_done = [r for r in journal.records if "rows" in r]
        if cells_done:
            data = dataset(cells_done, attrs, job.suite)
            paths = write(data, out / f"{job.stem}.nc", {"cell": "", "iteration": ".iterations"})
            if attrs["finished"]:
                journal.path.unlink(missing_ok=True)
        if engine is not None:
            engine.close()
    return paths


def _asked(job: Any, fits: Callable[[Cell], bool], limits: dict[str, int]) -> list[Cell]:
    """The cells of the job's file that this engine takes; those it does not are named on stderr. Raises UsageError when none is left."""
    _, asked = read_cells(Path(job.cells))
    cells = within(asked, limits["token_budget"], fits, limits["max_context"], limits["max_seqs"])
    for cell in asked:
        if cell not in cells:
            print(f"{job.stem}: {cell.label} does not fit this engine's limits: left out", file=sys.stderr, flush=True)
    if not cells:
        raise UsageError(f"{job.cells}: none of its {len(asked)} cells fits this engine's limits")
    return cells


def recover(journal_path: Path) -> list[Path]:
    """Write the files of a run that was killed, from its journal, marked finished = 0. Raises UsageError if it holds no cells."""
    header, records = read_journal(journal_path)
    attrs = next((r["attrs"] for r in records if r["key"] == "attrs"), {})
    cells_done = [r for r in records if "rows" in r]
    if not cells_done:
        raise UsageError(f"{journal_path}: no finished cell in it")
    target = journal_path.with_name(journal_path.name.removesuffix(".journal.jsonl") + ".nc")
    return write(dataset(cells_done, attrs | {"finished": 0}, header["suite"]), target, {"cell": "", "iteration": ".iterations"})
