"""Text of `simctl check`: the verdict, alarms, what to do, factors and loads."""

from __future__ import annotations

import math

import click

from calibrate.served.causes import Factor
from calibrate.served.check import CheckAnswer
from sim.units import format_seconds
from simctl.text.layout import aligned, fill

NAMES = {
    "launch": "host: launches",
    "work": "host: engine's own work",
    "request": "API server: time per request",
    "token": "API server: time per token",
    "clock": "GPU: what computing binds",
    "step": "GPU: iterations",
    "prompts": "prompts: cached tokens",
}


def show(answer: CheckAnswer) -> None:
    """Print an answer, no line wider than a terminal."""
    run, causes = answer.run, answer.causes
    click.echo(click.style(fill(answer.verdict), bold=True))
    for alarm in answer.alarms:
        click.echo(fill(f"ALARM {alarm}"))
    if answer.advice:
        click.echo(fill(f"Do: {answer.advice}."))
    click.echo()
    click.echo(fill(f"{run.name}: {run.model.name} on {run.tp} x {run.gpu.name}, {run.engine}. {answer.rates}."))
    for note in run.notes:
        click.echo(fill(f"Note: {note}."))
    click.echo(
        "\n" + "\n".join(aligned(("times an ordinary server's", "", "90 %", "token", "first token"), [_row(f) for f in causes.factors]))
    )
    rows = [
        (each.name[-28:], each.sent, what, *(format_seconds(times[place]) for times in (each.measured_s, each.ordinary_s, each.learnt_s)))
        for each in causes.loads
        for place, what in enumerate(("TTFT", "TPOT", "E2EL"))
        if math.isfinite(each.measured_s[place])
    ]
    click.echo("\n" + "\n".join(aligned(("load (means)", "", "", "measured", "ordinary", "learnt"), rows, left=3)))


def _row(f: Factor) -> tuple[str, ...]:
    digits = 0 if f.name == "prompts" else 2
    span = "-" if math.isnan(f.low) else f"{f.low:.{digits}f}-{f.high:.{digits}f}"
    return NAMES[f.name], f"{f.value:.{digits}f}", span, f"{1e3 * f.tpot_s:+.2f} ms", f"{1e3 * f.ttft_s:+.1f} ms"
