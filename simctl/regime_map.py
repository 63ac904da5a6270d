"""`simctl regime-map`: where sparse decode beats dense, over context and batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simctl.options import IntList, TokenCount, deployment_options, writable
from simctl.what_if import ENGINE_MEMORY
from simctl.wrap import fill

if TYPE_CHECKING:
    from sim.rates import RateDraws


@click.command("regime-map")
@deployment_options
@click.option("--k", type=click.IntRange(1, 4096), default=8, show_default=True, help="Selection budget in blocks of 128 tokens.")
@click.option("--kv-in", type=click.Choice(["hbm", "host"]), default="hbm", show_default=True, help="Where both sides keep their KV cache.")
@click.option("--ctx-min", type=TokenCount(), default="8K", show_default=True, help="Shortest context; the ladder doubles from here.")
@click.option("--ctx-max", type=TokenCount(), default="1M", show_default=True, help="Longest context.")
@click.option("--batch", "batches", type=IntList(4096), default="1,2,4,8,16,32", show_default=True, help="Batch sizes, comma-separated.")
@click.option(
    "--engine", type=click.Choice(list(ENGINE_MEMORY)), default="vllm", show_default=True, help="Whose share of device memory applies."
)
@click.option("--plot", metavar="FILE", help="Also draw the map with its break-even line to a PNG or SVG file.")
@click.option("--json", "as_json", is_flag=True, help="Print the map as JSON on stdout.")
@click.option("--out", metavar="FILE", help="Also write the speed-up at every draw (netCDF).")
@click.option("--posterior", type=click.Path(path_type=Path), metavar="FILE", help="Rates from this posterior. [default: the packaged one]")
@click.option("--draws", type=click.IntRange(20, 20_000), default=500, show_default=True, help="Draws behind the 5-95 % intervals.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the draws.")
def command(**options: Any) -> None:
    """Map the speed-up of block-128 top-k decode over dense decode.

    Each cell is dense step time over sparse step time, both with their KV cache in the same place. Above 1 sparse
    wins. `!` follows a value where the caches do not fit the GPU's memory, `?` one whose 5-95 % interval includes 1.

    \b
    Example:
      simctl regime-map --gpu H100 --ctx-min 8K --batch 1,8,32 --plot map.png
    """
    from sim.errors import UsageError
    from sim.policy import blocks
    from sim.precision import Precision
    from sim.rate_source import rates_for
    from sim.regime import regime_map
    from sim.specs.gpus import get_gpu
    from sim.specs.models import get_model

    if options["ctx_max"] < options["ctx_min"]:
        raise UsageError(f"--ctx-max {options['ctx_max']} is below --ctx-min {options['ctx_min']}")
    model, gpu = get_model(options["model"]), get_gpu(options["gpu"])
    if not model.kv_layers:
        raise UsageError(f"{model.name} has no full-context attention layer: there is nothing to select from")
    if options["kv_in"] == "host" and gpu.unified_memory:
        raise UsageError(f"{gpu.name} has one memory for CPU and GPU: there is no host tier to map")
    precision = Precision(options["dtype"], options["kv_dtype"])
    target, out = writable(options["plot"]), writable(options["out"])
    contexts = tuple(options["ctx_min"] * 2**i for i in range(40) if options["ctx_min"] * 2**i <= options["ctx_max"])
    rates = rates_for(gpu, precision, path=options["posterior"], draws=options["draws"], seed=options["seed"], tp=options["tp"])
    policy = blocks(options["k"], options["kv_in"])
    result = regime_map(
        model,
        gpu,
        policy,
        rates,
        contexts,
        options["batches"],
        precision=precision,
        tp=options["tp"],
        utilization=ENGINE_MEMORY[options["engine"]],
    )
    if out:
        from simctl.draws_file import write_regime

        asked = {name: options[name] for name in ("dtype", "kv_dtype", "tp", "draws", "seed")}
        write_regime(out, result, {"model": model.name, "gpu": gpu.name, "policy": policy.label, **asked}, rates.summary)
    if target:
        from simctl.plots import plot_regime

        plot_regime(result, f"{model.name} on {gpu.name}: {policy.label} over dense", target)
    if options["as_json"]:
        click.echo(json.dumps(_as_dict(result, model.name, gpu.name, options, rates.summary), indent=1))
    else:
        _render(result, f"{model.name} on {gpu.name}: speed-up of {policy.label} over dense", rates, options["tp"])
    for written in filter(None, (out, target)):
        click.echo(f"wrote {written}", err=True)


def _render(result: Any, title: str, rates: RateDraws, tp: int) -> None:
    import numpy as np

    from sim.rate_source import tensor_parallel_notes
    from sim.units import format_tokens

    click.echo(click.style(title, bold=True))
    for line in [f"Rates: {rates.summary}.", *(f"Note: {note}" for note in tensor_parallel_notes(tp, rates.basis))]:
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
    middle, most = float(np.median(wide)), float(np.max(wide))
    text = f"5-95 % intervals: half their width is {middle:.1%} of the value (median over the map), {most:.1%} at most; each in --json"
    click.echo("\n" + fill(text))
    click.echo("? interval includes 1: of the rates alone, what the formula misses cancels here")
    click.echo("! the cache does not fit the GPU's memory")


def _as_dict(result: Any, model: str, gpu: str, options: dict[str, Any], summary: str) -> dict[str, Any]:
    return {
        "model": model,
        "gpu": gpu,
        "k": options["k"],
        "kv_in": options["kv_in"],
        "rates": summary,
        "context_tokens": result.contexts.tolist(),
        "batch": result.batches.tolist(),
        "speedup": result.speedup.tolist(),
        "speedup_p05": result.low.tolist(),
        "speedup_p95": result.high.tolist(),
        "interval_of": "rates alone",
        "dense_fits": result.dense_fits.tolist(),
        "sparse_fits": result.sparse_fits.tolist(),
    }
