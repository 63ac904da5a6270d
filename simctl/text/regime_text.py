"""The regime map as a table for a terminal."""

from __future__ import annotations

import click
import numpy as np

from sim.closed_form.regime import Regimes
from sim.rates.load import scope_notes
from sim.units import format_tokens
from simctl.text.heading import model_title
from simctl.text.layout import fill


def render(result: Regimes, title: str) -> None:
    """Print the map."""
    assert result.question is not None
    assert result.rates is not None
    deployment, rates = result.question.deployment, result.rates
    name = deployment.model.name
    click.echo(click.style(fill(title.replace(name, model_title(name), 1)), bold=True))
    for line in [f"Rates: {rates.summary}.", *(f"Note: {note}" for note in scope_notes(deployment, rates))]:
        click.echo(fill(line))
    click.echo()
    click.echo(f"{'context':>8} |" + "".join(f"{'b=' + format(int(b)):>9} " for b in result.batches))
    for i, context in enumerate(result.contexts):
        cells = []
        for j in range(len(result.batches)):
            doubt = "?" if result.low[i, j] < 1 < result.high[i, j] else " "
            fits = result.dense_fits[i, j] and result.sparse_fits[i, j]
            cells.append(f"{result.speedup[i, j]:>8.2f}{doubt if fits else '!'}")
        click.echo(f"{format_tokens(int(context)):>8} |" + " ".join(cells))
    wide = (result.high - result.low) / (2 * result.speedup)
    text = (
        f"5-95 % intervals: half their width is {float(np.median(wide)):.1%} of the value (median over the map), "
        f"{float(np.max(wide)):.1%} at most; each in --json"
    )
    click.echo("\n" + fill(text))
    click.echo("? interval includes 1, over the rates: the formula's residual cancels in a ratio")
    click.echo("! the cache does not fit the GPU's memory")
