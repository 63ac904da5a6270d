"""`simctl loop`: measure this machine, learn its rates, predict a load it has not seen, measure that load, compare."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import SimctlError
from sim.files import made_folder
from simctl.text.validate_text import replicate_table, score_table

if TYPE_CHECKING:
    from simctl.campaign.loop_steps import LearntHere

KNOWN_RATES, NEW_RATE = (0.5, 1.5), 1.0
BUSY_LOAD = 1.0  # per core, over 5 minutes; the loop itself keeps one thread busy, and two for half a minute
SERVED_BUDGET_S = 60.0  # ladder and three open loops of 12 s, sent twice
SAMPLED = {"draws": 500, "tune": 700, "chains": 2, "cores": 2}
CPU = "cpu"
CPU_LIMITS: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 512}  # a laptop core runs a small model, in small batches


@click.command("loop")
@click.option("--model", default="tiny-25m", show_default=True, help="Model shape, as `simctl measure` names it.")
@click.option("--budget", default=60.0, show_default=True, type=click.FloatRange(5), help="Most seconds for the engine grid.")
@click.option("-o", "--out", type=click.Path(path_type=Path), default=Path("out/loop"), show_default=True, help="Folder for all files.")
def command(model: str, budget: float, out: Path) -> None:
    """Close the loop on this machine's CPU: measure, calibrate, simulate, measure again, compare.

    One vLLM CPU thread on a small random model. The prediction is made before the second served run starts; that run repeats the
    known loads (replicates, whose difference is the noise) and adds one arrival rate that nothing was learnt from.

    \b
    Example, four to six minutes on an idle machine:
      simctl loop -o out/loop
    """
    from calibrate.sampling import Settings
    from calibrate.served.runs import read_served
    from hw.engines.shapes import named, shape
    from hw.jobs import Job, run_apart
    from simctl.campaign import loop_steps as steps

    made_folder(out)
    start = time.monotonic()
    shape(model := named(model))

    def say(what: str) -> None:
        click.echo(f"[{time.monotonic() - start:4.0f} s] {what}", err=True)

    def measured(job: Job, folder: str) -> Path:
        paths = run_apart(job, (out / folder).resolve(), log=out / f"{folder}.log")
        if not paths:
            raise SimctlError(f"measuring {job.suite} wrote nothing, see {out / folder}.log")
        return paths[0]

    def served(rates: tuple[float, ...]) -> Job:
        return Job(
            "served", CPU, model, budget_s=SERVED_BUDGET_S, rates=rates, experiments=("ladder*", "open*"), **CPU_LIMITS
        )  # fmt: skip

    say("1/5 measure the engine, iteration by iteration")
    grid_file = measured(Job("engine-grid", CPU, model, budget_s=budget, **CPU_LIMITS), "grid")
    steps.require_cells(grid_file, out, budget)
    say("2/5 measure it served")
    first_file = measured(served(KNOWN_RATES), "first")
    say("3/5 calibrate")
    learnt = steps.learn(grid_file, first_file, out, Settings(**SAMPLED))
    say("4/5 predict a load at an arrival rate not seen")
    predicted = steps.predict_open_loop(learnt, NEW_RATE, KNOWN_RATES)
    say("5/5 measure that load")
    second_file = measured(served((*KNOWN_RATES, NEW_RATE)), "second")
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
