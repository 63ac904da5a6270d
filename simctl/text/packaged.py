"""Packaged measurements and posteriors, listed by what they are for."""

from __future__ import annotations

import json
from pathlib import Path

import click

from simctl.text.calibrate_text import say

# What each suite of packaged files is for, by how its files' names begin.
USES = {
    "engine-grid": "engine grids: what `simctl calibrate` learns from (bf16), and `simctl validate --grid` judges on",
    "decode": "decode steps of own kernels, and all-reduces: rates that no engine iteration shows",
    "floor": "roofline: bandwidths, GEMMs, all-reduces",
    "all-reduce": "all-reduces over several GPUs, by size",
    "served": "served runs: `simctl validate --run`",
    "weight-axis": "decodes in fp8 over models and contexts: `python -m studies.knees`, or --grid",
    "profile": "kernels of an iteration, profiled",
    "products": "GEMMs by rows: `python -m hw.show FILE point`",
    "kernels": "the decode kernels of docs/kernels.md",
}


def show_packaged(as_json: bool) -> None:
    """Print names by use, as text or as one JSON object; suites that an installed package lacks are said to be in a checkout."""
    from calibrate.measured_files import packaged_measurements
    from sim.rates.posterior import packaged_posteriors, read_posterior

    measured = [f"{p.parent.name}/{p.name}" for p in packaged_measurements()]
    posteriors = packaged_posteriors()
    if as_json:
        click.echo(json.dumps({"measurements": measured, "posteriors": [p.name for p in posteriors]}, indent=1))
        return
    click.echo("measurements:")
    for suite, use in USES.items():
        names = [name for name in measured if Path(name).stem.split("_")[0] == suite]
        say(f"  {use}" + ("" if names else " (in a checkout only)"), "  ")
        for name in names:
            click.echo(f"    {name}")
    click.echo("posteriors (every other GPU has the one of the population):")
    for path in posteriors:
        say(f"  {path.name}: {read_posterior(path).attrs['summary']}", "    ")
