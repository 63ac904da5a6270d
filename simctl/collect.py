"""`simctl calibrate --collect`: this machine's engine grid measured first."""

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


def collect(hw: str, model: str | None, out: Path, budget_s: float | None, cells: Path | None, seed: int) -> Collected:
    """Measure and return the file. `hw` is `cpu`, or the GPU that must be found here.

    Raises UsageError for an unknown GPU or no model, and what measuring raises.
    """
    from calibrate.measurement import open_measurement
    from hw.engines.shapes import named, shape
    from hw.jobs import Job, run_apart
    from sim.specs.gpus import get_gpu
    from simctl.commands.loop_steps import datasheet

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
        budget_s,
        seed,
        cells=str(cells) if cells else None,
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
