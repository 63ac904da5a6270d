"""`simctl regime-map`: where sparse decode beats dense, over context and batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError
from sim.files import writable
from simctl.options import BATCHES, TOKENS, deployment_of, deployment_options, limit_options, rate_options
from simctl.text.layout import fill

if TYPE_CHECKING:
    from sim import Deployment, RateDraws, RegimeMap
    from sim.specs.attention_policy import AttentionPolicy


@click.command("regime-map")
@deployment_options
@limit_options
@click.option("--k", type=click.IntRange(1, 4096), default=8, show_default=True, help="Selection budget in blocks of 128 tokens.")
@click.option("--kv-in", type=click.Choice(["hbm", "host"]), default="hbm", show_default=True, help="Where both sides keep their KV cache.")
@click.option("--ctx-min", type=TOKENS, default="8K", show_default=True, help="Shortest context; the ladder doubles from here.")
@click.option("--ctx-max", type=TOKENS, default="1M", show_default=True, help="Longest context.")
@click.option("--batch", "batches", type=BATCHES, default="1,2,4,8,16,32", show_default=True, help="Batch sizes, comma-separated.")
@rate_options
@click.option("--draws", type=click.IntRange(20, 20_000), default=500, show_default=True, help="Draws behind the 5-95 % intervals.")
@click.option("--plot", metavar="FILE", help="Also draw the map with its break-even line to a PNG or SVG file.")
@click.option("--json", "as_json", is_flag=True, help="Print the map as JSON on stdout.")
@click.option("--out", metavar="FILE", help="Also write the speed-up at every draw (netCDF).")
def command(**options: Any) -> None:
    """Map the speed-up of block-128 top-k decode over dense decode.

    Each cell is dense step time over sparse step time, both with their KV cache in the same place. Above 1 sparse
    wins. `!` follows a value where the caches do not fit the GPU's memory, `?` one whose 5-95 % interval includes 1.

    \b
    Example:
      simctl regime-map --gpu H100 --ctx-min 8K --batch 1,8,32 --plot map.png
    """
    target, out = writable(options["plot"]), writable(options["out"])
    deployment, policy, rates, result = _mapped(options)
    title = f"{deployment.model.name} on {deployment.gpu.name}: speed-up of {policy.label} over dense"
    if out:
        from sim.results.netcdf import write_netcdf

        asked = {name: options[name] for name in ("draws", "seed")}
        asked |= {"dtype": deployment.precision.weights, "kv_dtype": deployment.precision.kv, "tp": deployment.tp}
        names = {"model": deployment.model.name, "gpu": deployment.gpu.name, "policy": policy.label, "rates_basis": rates.summary}
        write_netcdf(out, result.to_xarray(**names, **asked))
    if target:
        from simctl.plots.figures import plot_regime

        plot_regime(result, title, target)
    if options["as_json"]:
        click.echo(json.dumps(_as_dict(result, deployment, options, rates), indent=1))
    else:
        _render(result, title, deployment, rates)
    for written in filter(None, (out, target)):
        click.echo(f"wrote {written}", err=True)


def json_answer(options: Mapping[str, Any]) -> dict[str, Any]:
    """What --json prints."""
    deployment, _, rates, result = _mapped(options)
    return _as_dict(result, deployment, options, rates)


def _mapped(options: Mapping[str, Any]) -> tuple[Deployment, AttentionPolicy, RateDraws, RegimeMap]:
    from sim import load_rates, regime_map
    from sim.specs.attention_policy import blocks

    if options["ctx_max"] < options["ctx_min"]:
        raise UsageError(f"--ctx-max {options['ctx_max']} is below --ctx-min {options['ctx_min']}")
    deployment, policy = deployment_of(options), blocks(options["k"], options["kv_in"])
    contexts = [options["ctx_min"] * 2**i for i in range(40) if options["ctx_min"] * 2**i <= options["ctx_max"]]
    rates = load_rates(deployment, posterior=options["posterior"], draws=options["draws"], seed=options["seed"])
    return deployment, policy, rates, regime_map(deployment, policy, contexts, options["batches"], rates)


def _render(result: RegimeMap, title: str, deployment: Deployment, rates: RateDraws) -> None:
    import numpy as np

    from sim.rates.load import scope_notes
    from sim.units import format_tokens

    click.echo(click.style(title, bold=True))
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


def _as_dict(result: RegimeMap, deployment: Deployment, options: Mapping[str, Any], rates: RateDraws) -> dict[str, Any]:
    return {
        "model": deployment.model.name,
        "gpu": deployment.gpu.name,
        "k": options["k"],
        "kv_in": options["kv_in"],
        "rates": rates.summary,
        "context_tokens": result.contexts.tolist(),
        "batch": result.batches.tolist(),
        "speedup": result.speedup.tolist(),
        "speedup_p05": result.low.tolist(),
        "speedup_p95": result.high.tolist(),
        "interval_of": "rates only",
        "dense_fits": result.dense_fits.tolist(),
        "sparse_fits": result.sparse_fits.tolist(),
    }
