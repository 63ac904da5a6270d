"""Tables of `simctl learn`."""

from __future__ import annotations

import math
from typing import Any

import click

from calibrate.served.check import CheckAnswer
from sim.results.intervals import Z_90
from simctl.text.calibrate_text import rate_table, say
from simctl.text.layout import table


def show_host(answer: CheckAnswer, as_json: bool) -> None:
    """A host as it was learnt beside its prior: medians and 90 % intervals, times those of the packaged hosts."""
    host, prior = answer.host, answer.causes.learnt.prior
    if as_json:
        click.echo(host.text(), nl=False)
        return
    say(answer.verdict)
    say(f"host {host.source}")
    rows = []
    names = {
        "launch": "launches outside graphs", "work": "engine's own work", "step": "iterations of the GPU",
        "clock": "what computing binds",
    }  # fmt: skip
    for key, name in names.items():
        cells = []
        for each in (prior, host):
            value, half = getattr(each, key), math.exp(Z_90 * (getattr(each, f"{key}_sd") or 0.0))
            cells.append(f"{value:.2f} [{value / half:.2f}-{value * half:.2f}]")
        rows.append((name, *cells))
    rows.append(("time per request (ms)", *(f"{1e3 * (each.api_s['request_s'] + each.api_s['serial_s']):.1f}" for each in (prior, host))))
    click.echo(table(("times the packaged hosts", "before", "learnt"), rows))


def show(r: dict[str, Any]) -> None:
    """Rates prior against posterior, the sampler's gates, and the log beside its replay."""
    gave_up = f", {r['given_up']} given up (censored)" if r["given_up"] else ""
    say(f"{r['log']}: {r['source']}, {r['requests']} requests, {r['answered']} answered{gave_up}")
    say(f"  check: {r['check']}", "    ")
    say(f"  before them: {r['start']}", "    ")
    for note in r["notes"]:
        say(f"  note: {note}", "    ")
    lines = rate_table([(x["name"], x["unit"], x["prior"], x["posterior"]) for x in r["rates"]])
    click.echo("\n".join(("", *lines, "")))
    say(f"misfit of group means: {', '.join(f'{k} {v:.1%}' for k, v in r['misfit'].items())}")
    say(f"R-hat <= {r['rhat_max']:.4f}, effective sample size >= {r['ess_min']:.0f}, {r['divergences']} divergences")
    rows = [
        (x["figure"], *(f"{1e3 * x[k]:.1f}" for k in ("measured_s", "simulated_s", "low_s", "high_s")),
         f"{x['simulated_s'] / x['measured_s'] - 1:+.1%}")
        for x in r["replayed"]
    ]  # fmt: skip
    click.echo("\n" + table(("replayed (ms)", "measured", "simulated", "5%", "95%", "error"), rows))
