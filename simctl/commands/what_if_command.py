"""`simctl what-if`: can this GPU serve this context, how fast, and what binds?"""

from __future__ import annotations

import json
from typing import Any

import click

from sim.files import writable
from simctl.from_options.questions import what_if_of
from simctl.options.option_groups import Sectioned
from simctl.options.what_if_parser import PARSER


@click.command("what-if", cls=Sectioned, sections={}, params=PARSER.params)
def command(**options: Any) -> None:
    """Lay out every way to decode a long context on one GPU.

    A decode step may read all of the context (dense), its two ends, or a selection: the pages of 16 or the blocks of
    128 tokens that matter most. For each, with the KV cache in HBM or in host RAM: does it fit, step time, tokens per
    second, speed-up over the best dense that fits, and the term of the step time that binds. The verdict comes first.

    With --map each cell is the dense step time over that of block-128 selection: above 1 sparse wins. `!` follows a value where the caches
    do not fit the GPU's memory, `?` one whose 5-95 % interval includes 1.

    \b
    Examples:
      simctl what-if --ctx 1M --gpu A10
      simctl what-if --ctx 128K --gpu H100 --batch 1,8,32 --k 8,32
      simctl what-if --ctx 1M --gpu H100 --map hbm --plot map.png
    """
    from sim import RegimeMap
    from sim.results.netcdf import write_netcdf

    plot, out = writable(options["plot"]), writable(options["out"])
    question = what_if_of(options)
    of_map = isinstance(question, RegimeMap)
    result = question.answer()
    if out:
        write_netcdf(out, result.to_xarray(**(_map_attributes(result, options) if of_map else _attributes(result))))
    if plot:
        from simctl.plots.answer_plots import plot_regime, plot_what_if

        if of_map:
            plot_regime(result, result.title, plot)
        else:
            plot_what_if(result.question, result.rates, plot)
    if options["as_json"]:
        click.echo(json.dumps(result.to_dict(), indent=1))
    elif of_map:
        from simctl.text.regime_text import render as render_map

        render_map(result, result.title)
    else:
        from simctl.text.what_if_text import render

        render(result, options["explain"])
    for written in filter(None, (out, plot)):
        click.echo(f"wrote {written}", err=True)


def _attributes(result: Any) -> dict[str, Any]:
    """Of the file of draws: what was asked."""
    return {name: value if type(value) in (int, float, str) else str(value) for name, value in result.question.to_dict().items()}


def _map_attributes(result: Any, options: dict[str, Any]) -> dict[str, Any]:
    d, question = result.question.deployment, result.question
    names = {"model": d.model.name, "gpu": d.gpu.name, "policy": question.policy.label, "rates_basis": result.rates_summary}
    return names | {"draws": question.draws, "seed": question.seed, "dtype": d.precision.weights, "kv_dtype": d.precision.kv, "tp": d.tp}
