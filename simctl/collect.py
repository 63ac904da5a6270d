"""Engine grids that `simctl calibrate` learns from: packaged, of files, or of this machine, measured first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from sim.errors import SimctlError, UsageError

CPU = "cpu"
# a laptop core runs a small model, in small batches
CPU_MODEL, CPU_LIMITS = "tiny-25m", {"max_num_seqs": 16, "max_num_batched_tokens": 512}


@dataclass(frozen=True)
class Collected:
    """The measured file, and the GPU (a spec) it stands for."""

    path: Path
    gpu: Any


def grids_of(hw: str, given: tuple[Path, ...], engine: str | None, folder: Path | None, **how: Any) -> tuple[Any, list[Any]]:
    """(GPU, its grids of `engine`): those `given`, one measured into `folder`, else the packaged ones."""
    from calibrate.measured_files import engine_grids, of_engine
    from calibrate.steps.grid_cells import read_engine_grid
    from sim.specs.gpus import get_gpu

    if folder is None:
        gpu = get_gpu(hw)
        return gpu, of_engine(engine_grids(gpu, given), engine, bool(given))
    found = collect(hw, out=folder, **how)
    return found.gpu, of_engine([read_engine_grid(found.path, found.gpu)], engine, True)


def collect(hw: str, model: str | None, out: Path, budget: float | None, cells: Path | None, seed: int) -> Collected:
    """Measure and return the file. `hw` is `cpu`, or the GPU that must be found here.

    Raises UsageError for an unknown GPU or no model, and what measuring raises.
    """
    from calibrate.measurement import open_measurement
    from hw.engines.shapes import named, shape
    from hw.jobs import Job, run_apart
    from sim.specs.gpus import get_gpu
    from simctl.loop_steps import datasheet

    gpu = None if hw == CPU else get_gpu(hw)
    name, _, quantization = (model or (CPU_MODEL if hw == CPU else "")).partition(":")
    if not name:
        raise UsageError("--collect on a GPU needs --model: a shape as `simctl measure` names it")
    shape(name := named(name))
    job = Job(
        "engine-grid",
        "cuda" if gpu else CPU,
        name,
        quantization or None,
        budget,
        seed,
        cells=str(cells.resolve()) if cells else None,
    )
    job = replace(job, expect_gpu=gpu.name) if gpu else replace(job, **CPU_LIMITS)
    click.echo(f"measuring {job.suite} of {name} into {out}", err=True)
    paths = run_apart(job, out.resolve())
    if not paths:
        raise SimctlError(f"measuring wrote no engine grid into {out}")
    (path,) = paths
    if gpu is None:  # this machine's CPU as a GPU spec: the roofline microbenchmarks of the same run, with room above them
        gpu = get_gpu(str(datasheet(dict(open_measurement(path).attrs), out / "this-machine.yaml")))
    return Collected(path, gpu)
