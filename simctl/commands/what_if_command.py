"""`simctl what-if`: can this GPU serve this context, how fast, and what binds?"""

from __future__ import annotations

import json
from typing import Any

import click

from sim.files import writable
from simctl.asked.questions import what_if_of
from simctl.options import BATCHES, FRACTION, TOKENS, deployment_options, limit_options, rate_options, served_option


@click.command("what-if")
@click.option("--ctx", "context", type=TOKENS, required=True, help="Context length: 8192, 128K, 1M (K = 2**10, M = 2**20).")
@deployment_options
@limit_options
@click.option("--batch", "batches", type=BATCHES, default="1", show_default=True, help="Batch sizes, comma-separated.")
@click.option("--k", "ks", type=BATCHES, default="8,16,32", show_default=True, help="Selection budgets in blocks of 128 tokens.")
@click.option("--tau", type=FRACTION, default=0.65, show_default=True, help="Per-request efficiency that defines the batch knee.")
@rate_options
@served_option
@click.option("--draws", type=click.IntRange(20, 100_000), default=1000, show_default=True, help="Draws behind the 5-95 % intervals.")
@click.option("--explain", is_flag=True, help="Print all selections, and what the answer rests on.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON on stdout.")
@click.option("--plot", metavar="FILE", help="Also draw tok/s over context, with intervals, to a PNG or SVG file.")
@click.option("--out", metavar="FILE", help="Also write the step times of every option at every draw (netCDF).")
def command(**options: Any) -> None:
    """Lay out every way to decode a long context on one GPU.

    A decode step may read all of the context (dense), its two ends, or a selection: the pages of 16 or the blocks of
    128 tokens that matter most. For each, with the KV cache in HBM or in host RAM: does it fit, step time, tokens per
    second, speed-up over the best dense that fits, and the term of the step time that binds. The verdict comes first.

    \b
    Examples:
      simctl what-if --ctx 1M --gpu A10
      simctl what-if --ctx 128K --gpu H100 --batch 1,8,32 --k 8,32
    """
    plot, out = writable(options["plot"]), writable(options["out"])
    result = what_if_of(options).answer()
    if out:
        from sim.results.netcdf import write_netcdf

        question = result.to_dict()["question"]
        attrs = {name: value if type(value) in (int, float, str) else str(value) for name, value in question.items()}
        write_netcdf(out, result.to_xarray(**attrs))
    if plot:
        from simctl.plots.answer_plots import plot_what_if

        plot_what_if(result.question, result.rates, plot)
    if options["as_json"]:
        click.echo(json.dumps(result.to_dict(), indent=1))
    else:
        from simctl.text.what_if_text import render

        render(result, options["explain"])
    for written in filter(None, (out, plot)):
        click.echo(f"wrote {written}", err=True)
