"""`simctl regime-map`: where sparse decode beats dense, over context and batch."""

from __future__ import annotations

import json
from typing import Any

import click

from sim.files import writable
from simctl.asked.questions import regime_map_of
from simctl.options import BATCHES, TOKENS, deployment_options, limit_options, rate_options, served_option


@click.command("regime-map")
@deployment_options
@limit_options
@click.option("--k", type=click.IntRange(1, 4096), default=8, show_default=True, help="Selection budget in blocks of 128 tokens.")
@click.option("--kv-in", type=click.Choice(["hbm", "host"]), default="hbm", show_default=True, help="Where both sides keep their KV cache.")
@click.option("--ctx-min", type=TOKENS, default="8K", show_default=True, help="Shortest context; the ladder doubles from here.")
@click.option("--ctx-max", type=TOKENS, default="1M", show_default=True, help="Longest context.")
@click.option("--batch", "batches", type=BATCHES, default="1,2,4,8,16,32", show_default=True, help="Batch sizes, comma-separated.")
@rate_options
@served_option
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
    question = regime_map_of(options)
    deployment, result = question.deployment, question.answer()
    title = f"{deployment.model.name} on {deployment.gpu.name}: speed-up of {question.policy.label} over dense"
    if out:
        from sim.results.netcdf import write_netcdf

        asked = {name: options[name] for name in ("draws", "seed")}
        asked |= {"dtype": deployment.precision.weights, "kv_dtype": deployment.precision.kv, "tp": deployment.tp}
        names = {
            "model": deployment.model.name,
            "gpu": deployment.gpu.name,
            "policy": question.policy.label,
            "rates_basis": result.rates_summary,
        }
        write_netcdf(out, result.to_xarray(**names, **asked))
    if target:
        from simctl.plots.answer_plots import plot_regime

        plot_regime(result, title, target)
    if options["as_json"]:
        click.echo(json.dumps(result.to_dict(), indent=1))
    else:
        from simctl.text.regime_text import render

        render(result, title)
    for written in filter(None, (out, target)):
        click.echo(f"wrote {written}", err=True)
