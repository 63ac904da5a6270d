"""Tables of `simctl learn`."""

from __future__ import annotations

from typing import Any

import click

from simctl.text.calibrate_text import rate_table, say
from simctl.text.layout import table


def show(r: dict[str, Any]) -> None:
    """Rates prior against posterior, the sampler's gates, and the log beside its replay."""
    gave_up = f", {r['given_up']} given up (censored)" if r["given_up"] else ""
    say(f"{r['log']}: {r['source']}, {r['requests']} requests, {r['answered']} answered{gave_up}")
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
