"""`simctl loop`: measure this machine, learn its rates, predict a load it has not seen, measure that load, compare."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from sim.errors import SimctlError
from simctl.tables import table

LIMITS = {"max_num_seqs": 16, "max_num_batched_tokens": 512}
KNOWN_RATES, NEW_RATE = (0.5, 1.5), 1.0
BUSY_LOAD = 1.0  # per core, over 5 minutes; the loop itself keeps one thread busy, and two for half a minute
SERVED_BUDGET_S = 60.0  # ladder and three open loops of 12 s take about 45 s


@click.command("loop")
@click.option("--model", default="tiny-25m", show_default=True, help="Model shape, as `simctl measure` names it.")
@click.option(
    "--budget",
    default=60.0,
    show_default=True,
    type=click.FloatRange(5),
    help="Most seconds for the engine grid.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of loads, sampler and draws.")
@click.option("-o", "--out", type=click.Path(path_type=Path), default=Path("out/loop"), show_default=True, help="Folder for all files.")
def command(model: str, budget: float, seed: int, out: Path) -> None:
    """Close the loop on this machine's CPU: measure, calibrate, simulate, measure again, compare.

    One vLLM CPU thread on a small random model. The prediction is made before the second served run starts; that run repeats the
    known loads (their difference is the noise) and adds one arrival rate that nothing was learnt from.

    \b
    Example, four to six minutes on an idle machine:
      simctl loop -o out/loop
    """
    from simctl import loop_steps as steps

    start = time.monotonic()

    def say(what: str) -> None:
        click.echo(f"[{time.monotonic() - start:4.0f} s] {what}", err=True)

    say("1/5 measure the engine, iteration by iteration")
    grid_file = _measure("engine-grid", out / "grid", model, budget, seed)
    say("2/5 measure it served")
    first_file = _measure("served", out / "first", model, SERVED_BUDGET_S, seed, KNOWN_RATES)
    say("3/5 calibrate")
    learnt = steps.learn(grid_file, first_file, out, seed, LIMITS)
    say("4/5 predict a load at an arrival rate not seen")
    second_rates = (*KNOWN_RATES, NEW_RATE)
    predicted = steps.predict_open_loop(learnt, NEW_RATE, KNOWN_RATES, seed)
    say("5/5 measure that load")
    second_file = _measure("served", out / "second", model, SERVED_BUDGET_S, seed, second_rates)
    rows, requests = steps.compare(learnt, predicted, second_file, f"open {NEW_RATE:g}/s")
    click.echo(f"{steps.describe(learnt)}\n")
    click.echo(table(("load", "figure", "predicted", "90% rates", "90% with noise", "measured", "error", "noise"), rows))
    click.echo(f"\nper request (new load, n = {requests['n']}): {requests['text']}")
    click.echo(f"the same request in two runs of the known loads: {requests['repeated']}")
    load, cores = os.getloadavg(), os.cpu_count() or 1
    click.echo(f"whole loop: {time.monotonic() - start:.0f} s; load average {load[0]:.1f} on {cores} cores (5 min: {load[1]:.1f})")
    if load[1] > BUSY_LOAD * cores:
        click.echo("this machine was busy with other work: the figures are not its own, repeat the loop when it is idle")


def _measure(suite: str, out: Path, model: str, budget: float, seed: int, rates: tuple[float, ...] = ()) -> Path:
    """Run one suite in a process of its own (an engine keeps threads and memory) and return its file."""
    call = [sys.executable, "-m", "hw", "--hw", "cpu", "--suite", suite, "--model", model, "-o", str(out), "--budget", f"{budget:g}"]
    call += ["--seed", str(seed), "--max-num-seqs", str(LIMITS["max_num_seqs"])]
    call += ["--max-num-batched-tokens", str(LIMITS["max_num_batched_tokens"])]
    call += ["--rates", ",".join(f"{r:g}" for r in rates), "--experiments", "ladder*,open*"] if rates else []
    log = out.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as sink:
        done: subprocess.CompletedProcess[Any] = subprocess.run(call, stdout=sink, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        last = [line for line in log.read_text().splitlines() if line.startswith("hw:")][-1:] or [f"see {log}"]
        raise SimctlError(f"measuring {suite} failed: {last[0]}")
    return out / f"{suite}_{model}.nc"
