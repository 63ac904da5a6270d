"""`simctl calibrate --collect`: measure this machine's engine grid first, then learn from it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from sim.errors import SimctlError, UsageError

CPU = "cpu"
# a laptop core runs a small model, in small batches
CPU_MODEL, CPU_LIMITS = "tiny-25m", {"max-num-seqs": 16, "max-num-batched-tokens": 512}


@dataclass(frozen=True)
class Collected:
    """The measured file, and the GPU (a spec) it stands for."""

    path: Path
    gpu: Any


def collect(hw: str, model: str | None, out: Path, budget_s: float | None, cells: Path | None, seed: int) -> Collected:
    """Measure in a process of its own and return the file. `hw` is `cpu`, or the GPU that must be found here.

    Raises UsageError for an unknown GPU or no model, SimctlError with the measuring command's last word when it fails.
    """
    from sim.specs.gpus import get_gpu

    gpu = None if hw == CPU else get_gpu(hw)
    name = model or (CPU_MODEL if hw == CPU else None)
    if name is None:
        raise UsageError("--collect on a GPU needs --model: a shape as `simctl measure` names it")
    call = ["--hw", CPU if hw == CPU else "cuda", "--suite", "engine-grid", "--model", name, "-o", str(out.resolve()), "--seed", str(seed)]
    if gpu is not None:
        call += ["--expect-gpu", gpu.name]
    else:
        call += [part for option, value in CPU_LIMITS.items() for part in (f"--{option}", str(value))]
    call += ["--budget", f"{budget_s:g}"] if budget_s else []
    call += ["--cells", str(cells)] if cells else []
    click.echo(f"measuring: python -m hw {' '.join(call)}", err=True)
    code, said = measure(call)
    if code:
        raise SimctlError(f"measuring failed: {said or f'exit {code}'}")
    found = sorted(out.glob("engine-grid_*.nc"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise SimctlError(f"measuring wrote no engine grid into {out}")
    return Collected(found[-1], gpu or machine(found[-1], out))


def measure(call: list[str]) -> tuple[int, str]:
    """(exit status, last line of stderr) of the measuring command; its progress goes to our stderr."""
    root = Path(__file__).resolve().parent.parent
    last, call = "", [sys.executable, "-m", "hw", *call]
    with subprocess.Popen(call, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=root) as process:
        assert process.stderr is not None
        for line in process.stderr:
            click.echo(line, err=True, nl=False)
            last = line.strip() or last
        return process.wait(), last


def machine(grid: Path, out: Path) -> Any:
    """This machine's CPU as a GPU spec: the floors of the same run, with room above them."""
    from calibrate.measurement import open_measurement
    from sim.specs.gpus import get_gpu
    from simctl.loop_steps import datasheet

    return get_gpu(str(datasheet(dict(open_measurement(grid).attrs), out / "this-machine.yaml")))
