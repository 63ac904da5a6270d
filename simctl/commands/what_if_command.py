"""`simctl what-if`: how fast does this GPU serve this context, for how many users, at what cost, and what binds?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from sim.files import writable
from simctl.from_options.questions import of_sparse, what_if_of
from simctl.options.option_groups import Sectioned
from simctl.options.what_if_parser import PARSER


@click.command("what-if", cls=Sectioned, sections={}, params=PARSER.params)
def command(**options: Any) -> None:
    """What a deployment does for users of one context length: time to first token, decode speed, how many fit, cost, and what binds.

    Times are those of an engine that is never idle: each user has a request in flight, or with --users and --think-time as many of them
    as Little's law says. Where they do not fit, the cheapest fix is named.

    From 64K tokens on, or with --sparse, --k, --map or --stack, the answer lays out every way to decode the context. A decode step may
    read all of it (dense), its two ends, or a selection: the pages of 16 or the blocks of 128 tokens that matter most. For each, with the
    KV cache in HBM or in host RAM: does it fit, step time, tokens per second, speed-up over the best dense that fits, and the term of the
    step time that binds. The verdict comes first.

    With --map each cell is the dense step time over that of block-128 selection: above 1 sparse wins. `!` follows a value where the caches
    do not fit the GPU's memory, `?` one whose 5-95 % interval includes 1.

    \b
    Examples:
      simctl what-if --ctx 8K --gpu H100 --model Qwen3-32B
      simctl what-if --ctx 4K --gpu L40S --users 200 --think-time 30s
      simctl what-if --ctx 1M --gpu A10
      simctl what-if --ctx 128K --gpu H100 --batch 1,8,32 --k 8,32
      simctl what-if --ctx 1M --gpu H100 --map hbm --plot map.png
    """
    plot, out = None, writable(options["out"])
    if options["plot"]:
        from simctl.report.picture_files import plot_target

        plot = plot_target(options["plot"])
    question: Any = what_if_of(options)
    served = None if of_sparse(options) else question.serving()
    if served is not None and not (out or plot or options["as_json"] or options["explain"]):
        from simctl.text.serving_text import serving_lines

        click.echo("\n".join(serving_lines(served)))
        return
    of_map = options["kv_in"] is not None
    result = question.answer()
    if out:
        from sim.netcdf import write_netcdf

        write_netcdf(out, result.to_xarray(**(_map_attributes(result, options) if of_map else _attributes(result))))
    if plot:
        from simctl.report import of_regime, of_what_if, picture_files

        drawn = of_regime.part_of(result.to_dict()).pictures if of_map else [of_what_if.picture(result.question, result.rates)]
        picture_files.plot(drawn, plot)
    _show(result, served, options)
    for written in filter(None, (out, plot)):
        click.echo(f"wrote {written}", err=True)


def _attributes(result: Any) -> dict[str, Any]:
    """Of the file of draws: what was asked."""
    return {name: value if type(value) in (int, float, str) else str(value) for name, value in result.question.to_dict().items()}


def _map_attributes(result: Any, options: dict[str, Any]) -> dict[str, Any]:
    d, question = result.question.deployment, result.question
    names = {"model": d.model.name, "gpu": d.gpu.name, "policy": question.policy.label, "rates_basis": result.rates_summary}
    return names | {"draws": question.draws, "seed": question.seed, "dtype": d.precision.weights, "kv_dtype": d.precision.kv, "tp": d.tp}


def _show(result: Any, served: Any, options: Mapping[str, Any]) -> None:
    """The whole answer: as JSON, as a regime map, or as text."""
    if options["as_json"]:
        click.echo(json.dumps(result.to_dict() | ({"serving": served.to_dict()} if served else {}), indent=1))
    elif options["kv_in"] is not None:
        from simctl.text.regime_text import render as render_map

        render_map(result, result.title)
    else:
        from simctl.text.serving_text import serving_lines
        from simctl.text.what_if_text import render

        if served is not None:
            click.echo("\n".join([*serving_lines(served, explained=True), ""]))
        render(result, options["explain"])
