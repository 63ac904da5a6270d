"""`simctl loop`: measure this machine, learn its rates, predict a load it has not seen, measure that load, compare."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from sim.errors import SimctlError, UsageError
from sim.files import made_folder, write_text
from simctl.options.option_types import GPU
from simctl.text.layout import aligned, fill
from simctl.text.validate_text import replicate_table, score_table

if TYPE_CHECKING:
    from hw.jobs import Job
    from simctl.campaign.loop_gpu import GpuLoop
    from simctl.campaign.loop_kernels import ComparedStep
    from simctl.campaign.loop_steps import LearntHere

KNOWN_RATES, NEW_RATE = (0.5, 1.5), 1.0
BUSY_LOAD = 1.0  # per core, over 5 minutes; the loop itself keeps one thread busy, and two for half a minute
SERVED_BUDGET_S = 60.0  # ladder and three open loops of 12 s, sent twice
SAMPLED = {"draws": 500, "tune": 700, "chains": 2, "cores": 2}
CPU = "cpu"
CPU_LIMITS: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 512}  # a laptop core runs a small model, in small batches
CPU_MODEL, GPU_MODEL = "tiny-25m", "qwen2.5-7b"


@click.command("loop")
@click.option(
    "--gpu",
    "on_gpu",
    is_flag=True,
    help="Close the loop on this machine's CUDA card, with this project's kernels, and with vLLM where it is installed.",
)
@click.option(
    "--hw", type=GPU, metavar="GPU", help="With --gpu: what the card is, a catalogue name or a YAML file. [default: as the driver says]"
)
@click.option("--model", help=f"Model shape, as `simctl measure` names it.  [default: {CPU_MODEL}, with --gpu {GPU_MODEL}]")
@click.option(
    "--budget",
    type=click.FloatRange(5),
    help="Most seconds for the engine grid, or with --gpu for decode steps.  [default: 60, with --gpu 150]",
)
@click.option("-o", "--out", type=click.Path(path_type=Path), default=Path("out/loop"), show_default=True, help="Folder for all files.")
def command(on_gpu: bool, hw: str | None, model: str | None, budget: float | None, out: Path) -> None:
    """Close the loop on this machine: measure, calibrate, predict, measure again, compare.

    On the CPU: one vLLM thread on a small random model. The prediction is made before the second served run starts; that run repeats the
    known loads (replicates, whose difference is the noise) and adds one arrival rate that nothing was learnt from.

    With --gpu: roofline and host, then decode steps by this project's kernels. Rates are learnt from a third of them; the others are
    predicted without and with these rates, and measured. Where vLLM is installed its iterations are learnt from, too, and half a minute
    of load is predicted both ways. Writes loop.json, which `simctl report` shows, and posterior.nc, from which `what-if` answers.

    \b
    Examples, four to six minutes on an idle machine:
      simctl loop -o out/loop
      simctl loop --gpu -o out/loop
      simctl loop --gpu --hw my-card.yaml --model llama3.2-1b
    """
    if on_gpu:
        _on_gpu(hw, named_or(model, GPU_MODEL), budget or 150.0, out)
    elif hw is not None:
        raise UsageError("--hw is of --gpu")
    else:
        _on_cpu(named_or(model, CPU_MODEL), budget or 60.0, out)


def named_or(model: str | None, default: str) -> str:
    """The shape's name. UsageError for an unknown one."""
    from hw.engines.shapes import named, shape

    shape(found := named(model or default))
    return found


def _say(start: float, what: str) -> None:
    click.echo(f"[{time.monotonic() - start:4.0f} s] {what}", err=True)


def _measured(out: Path, job: Job, folder: Path, resume: bool = False) -> Path:
    """The file of a job, whose own words go to a log beside it."""
    from hw import jobs

    log = out / f"{folder.name}.log"
    more: dict[str, Any] = {"resume": True} if resume else {}
    paths = jobs.run_apart(job, folder.resolve(), log=log, **more)
    if not paths:
        raise SimctlError(f"measuring {job.suite} wrote nothing, see {log}")
    return paths[0]


def _on_gpu(hw: str | None, model: str, budget: float, out: Path) -> None:
    from calibrate.backend import check_samplers
    from hw import machine
    from sim.specs.gpus import get_gpu
    from simctl.campaign.loop_gpu import run

    check_samplers()
    machine.resolve_device("cuda")
    gpu = get_gpu(hw or str(machine.provenance("cuda")["gpu_name"]))
    made_folder(out)
    start = time.monotonic()
    found = run(model, gpu, budget, out, lambda job, folder, resume: _measured(out, job, folder, resume), lambda what: _say(start, what))
    write_text(out / "loop.json", json.dumps(found.to_dict(), indent=1) + "\n")
    click.echo("\n".join(loop_table(found)))
    click.echo(f"\nwhole loop: {time.monotonic() - start:.0f} s; wrote {out / 'loop.json'} and {out / 'posterior.nc'}")


def _on_cpu(model: str, budget: float, out: Path) -> None:
    from calibrate.sampling import Settings
    from calibrate.served.runs import read_served
    from hw.jobs import Job
    from simctl.campaign import loop_steps as steps

    made_folder(out)
    start = time.monotonic()

    def served(rates: tuple[float, ...]) -> Job:
        return Job(
            "served", CPU, model, budget_s=SERVED_BUDGET_S, rates=rates, experiments=("ladder*", "open*"), **CPU_LIMITS
        )  # fmt: skip

    _say(start, "1/5 measure the engine, iteration by iteration")
    grid_file = _measured(out, Job("engine-grid", CPU, model, budget_s=budget, **CPU_LIMITS), out / "grid")
    steps.require_cells(grid_file, out, budget)
    _say(start, "2/5 measure it served")
    first_file = _measured(out, served(KNOWN_RATES), out / "first")
    _say(start, "3/5 calibrate")
    learnt = steps.learn(grid_file, first_file, out, Settings(**SAMPLED))
    _say(start, "4/5 predict a load at an arrival rate not seen")
    predicted = steps.predict_open_loop(learnt, NEW_RATE, KNOWN_RATES)
    _say(start, "5/5 measure that load")
    second_file = _measured(out, served((*KNOWN_RATES, NEW_RATE)), out / "second")
    scores, replicates = steps.compare(learnt, predicted, read_served(second_file, learnt.run.gpu), NEW_RATE)
    click.echo("\n".join([_describe(learnt), "", *score_table(scores), *replicate_table(replicates), ""]))
    load, cores = os.getloadavg(), os.cpu_count() or 1
    click.echo(f"whole loop: {time.monotonic() - start:.0f} s; load average {load[0]:.1f} on {cores} cores (5 min: {load[1]:.1f})")
    if load[1] > BUSY_LOAD * cores:
        click.echo("this machine was busy with other work: the figures are not its own, repeat the loop when it is idle")


def _describe(learnt: LearntHere) -> str:
    """Learnt rates and their convergence."""
    before, r = learnt.in_process, learnt.served.rates.point
    return (
        f"learnt from {learnt.cells} cells: beta {r.beta / 1e9:.2f} GB/s, c0 {r.c0_s * 1e3:.2f} ms "
        f"(served {(r.c0_s - before.c0_s) * 1e3:+.2f} ms against stepped), linear {r.linear_flops_per_s / 1e9:.1f} Gflop/s, "
        f"API server {1e3 * (learnt.served.host.request_s + learnt.served.host.serial_s):.1f} ms per request; {learnt.diagnostics}"
    )


def loop_table(found: GpuLoop) -> list[str]:
    """Lines of the table and of its summary."""
    lines = [f"{found.model} on {found.gpu}: steps that nothing was learnt from; ! lies outside its 90 % interval", ""]
    rows = [
        (s.cell, *(f"{1e3 * v:.2f}" for v in (s.before_s[1], s.after_s[1], s.measured_s)), *(_error(s, w) for w in ("before", "after")))
        for s in found.steps
    ]
    lines += aligned(("step", "before ms", "learnt ms", "measured ms", "error before", "after"), rows)
    lines += ["", *(_summary(found.steps, which) for which in ("before", "after"))]
    lines += [fill(f"before: {found.before}"), fill(f"learnt: {found.diagnostics}"), ""]
    rates = [(r.name, r.unit.split(" ")[0].rstrip(","), *(f"{v:.4g}" for v in (r.prior[1], *r.posterior))) for r in found.rates]
    lines += aligned(("rate", "unit", "before", "5 %", "learnt", "95 %"), rows=rates, left=2)
    if found.served is not None:
        lines += ["", "Served load, median error of a request:"]
        before, after = ({(s.experiment, s.metric): s for s in report.scores} for report in found.served)
        served = [(*key, f"{before[key].median_abs:.1%}", f"{after[key].median_abs:.1%}") for key in before if key in after]
        lines += aligned(("load", "metric", "before", "learnt"), served, left=2)
    return lines


def _error(step: ComparedStep, which: str) -> str:
    return f"{100 * step.error(which):+.1f}%{' ' if step.inside(which) else '!'}"


def _summary(steps: Sequence[ComparedStep], which: str) -> str:
    size, inside = np.abs([s.error(which) for s in steps]), sum(s.inside(which) for s in steps)
    return f"{which:6} median error {100 * np.median(size):.1f} %, largest {100 * size.max():.1f} %, {inside} of {len(steps)} inside"
