"""`simctl validate`: how wrong are we on served runs the calibration never saw?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from simctl.options import Fraction, writable
from simctl.sections import Sectioned

PACKAGED = "data/measured"
RATE_DRAWS = 200  # to solve a served path at; only --draws of them are replayed


LOG = ("model", "gpu", "dtype", "kv-dtype", "tp", "engine", "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization",
       "enable-prefix-caching", "prefix-block")  # fmt: skip
SECTIONS = {
    "What to validate": ("run", "list", "known-blocks", "posterior", "draws"),
    "What is learnt from the run itself": ("low-load", "ladder", "carried", "path", "save-path"),
    "What a CSV log does not say of its server (--run LOG.csv)": LOG,
}


@click.command("validate", cls=Sectioned, sections=SECTIONS)
@click.option(
    "--run",
    "run_name",
    metavar="NAME|FILE",
    help="A packaged served run, a served netCDF, or a per-request CSV log. [default: all packaged]",
)
@click.option("--list", "list_runs", is_flag=True, help="List the packaged served runs and stop.")
@click.option("--low-load", metavar="NAME", help="Experiment to learn the served path from. [default: the open loop with the lowest rate]")
@click.option("--ladder/--no-ladder", default=True, show_default=True, help="Learn c0 and hidden host cost from true-decode windows too.")
@click.option(
    "--carried",
    is_flag=True,
    help="Learn nothing from the run: take the packaged served path, learnt on another, as it is. [default where a run has no open loop]",
)
@click.option("--path", "path_file", metavar="FILE", help="Carry this served path over (from --save-path), instead of the packaged one.")
@click.option("--known-blocks", type=click.IntRange(2), metavar="N", help="KV blocks the engine reported, instead of those predicted.")
@click.option("--posterior", type=click.Path(path_type=Path), metavar="FILE", help="Rates from this posterior. [default: the packaged one]")
@click.option("--model", help="Model it served: catalogue name or config.json.  [required with a CSV log]")
@click.option("--gpu", help="GPU it ran on.  [required with a CSV log]")
@click.option("--dtype", default="bf16", show_default=True, help="Weight dtype.")
@click.option("--kv-dtype", default="bf16", show_default=True, help="KV-cache dtype.")
@click.option("--tp", "-tp", default=1, show_default=True, type=click.IntRange(1, 64), help="GPUs per replica.")
@click.option("--engine", default="vllm", show_default=True, help="vllm, sglang, llamacpp, or a scheduler class's dotted path.")
@click.option("--max-num-seqs", type=click.IntRange(1), help="Engine limit it was taken under. [default: the engine's]")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Engine limit it was taken under. [default: the engine's]")
@click.option("--gpu-memory-utilization", type=Fraction(closed=True), help="Share of memory that the engine used. [default: the engine's]")
@click.option(
    "--enable-prefix-caching/--no-enable-prefix-caching", default=None, help="Whether it reused KV of equal prefixes. [default: on]"
)
@click.option("--prefix-block", default=512, show_default=True, type=click.IntRange(1), help="Tokens that one of prefix_ids stands for.")
@click.option("--draws", type=click.IntRange(0, 1000), default=40, show_default=True, help="Draws of the rates behind the intervals.")
@click.option(
    "--iterations", is_flag=True, help="Also hold each iteration to its price, of runs whose server wrote them down (measure --iterations)."
)
@click.option("--save-path", metavar="FILE", help="Write the served path learnt (JSON), for simulations to use.")
@click.option("--plot", metavar="FILE", help="Also draw the reliability diagram to a PNG or SVG file.")
@click.option("--json", "as_json", is_flag=True, help="Print every score as JSON on stdout.")
def command(**options: Any) -> None:
    """Replay measured served runs and print how far off the replay is.

    Same arrivals, lengths and limits; KV blocks predicted, not told. The rates come from engine grids; what serving hides or adds is learnt
    from one low-load experiment and the true-decode windows of a ladder, which are marked and not scored. Errors are relative, per request:
    median and 90th percentile of the absolute value, bias (the median), and the share of requests inside their 90 % interval. `MISS*` is
    a miss where loads sent again lie so far apart themselves that no prediction could be expected to hold the bound.

    A per-request log of any engine is a CSV with the columns arrival_s, prompt_tokens, output_tokens, first_token_s, finish_s (seconds on
    one clock). It may have cached_tokens, which are compared, and, of what prompts share, one of session (later requests of a session
    repeat all that was said before) and prefix_ids (ids of the prompt's blocks of --prefix-block tokens, separated by spaces). Its first
    tenth is what the served path is learnt from.

    Exit 1 when a metric is outside its declared bound: TTFT 5 %, TPOT 2 %, E2EL 2 % (median; 5 % in a burst), p99 TTFT 10 %.

    \b
    Examples:
      simctl validate                                 all packaged runs
      simctl validate --run served_llama3.1-8b.nc     one measured here
      simctl validate --run LOG.csv --model Llama-3.1-8B --gpu H100
      simctl validate --run LOG.csv --model Qwen3-14B --gpu H200 --engine sglang
    """
    from sim.errors import SimctlError, UsageError
    from simctl.validate_text import above_floor, as_dict, render, together

    packaged = _packaged()
    if options["list_runs"]:
        for name, path in packaged.items():
            click.echo(f"{name}  {path.stat().st_size // 1024} kB")
        return
    target, saved = writable(options["plot"]), writable(options["save_path"])
    paths = _chosen(options["run_name"], packaged)
    reports = [_validate(path, options) for path in paths]
    if options["iterations"] and all(report["iterations"] is None for report in reports):
        raise UsageError(f"no iterations were written down with {', '.join(report['run'].name for report in reports)}")
    if saved:
        _save_path(reports, saved)
    if target:
        from simctl.plots import plot_reliability

        plot_reliability({r["run"].name: (r["pairs"], r["path"].beyond, r["path"].run_noise) for r in reports}, target)
    if options["as_json"]:
        click.echo(json.dumps([as_dict(r) for r in reports], indent=1))
    else:
        for report in reports:
            render(report)
        if len(reports) > 1:
            click.echo(together(reports))
    missed = [(r, s) for r in reports for s in r["scores"] if not s.within]
    if missed:
        total = sum(len(r["scores"]) for r in reports)
        nobody = sum(above_floor(r, s) for r, s in missed)
        of_them = f"; of {nobody} of them the measured floor does, too" if nobody else ""
        raise SimctlError(f"{len(missed)} of {total} scores lie outside their declared bounds{of_them}")


def _packaged() -> dict[str, Path]:
    from importlib.resources import files

    root = Path(str(files("scenarios"))) / PACKAGED
    return {f"{p.parent.name}/{p.stem}": p for p in sorted(root.glob("*/served_*.nc"))}


def _chosen(name: str | None, packaged: dict[str, Path]) -> list[Path]:
    from difflib import get_close_matches

    from sim.errors import UsageError

    if name is None:
        if not packaged:
            raise UsageError("no served run is packaged; give one with --run FILE")
        return list(packaged.values())
    if name in packaged:
        return [packaged[name]]
    if Path(name).is_file():
        return [Path(name)]
    close = get_close_matches(name, packaged, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    raise UsageError(f"unknown run {name!r}{hint} known: {', '.join(packaged) or 'none'}; or the path of a file")


def _validate(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import replace

    from calibrate.logs.prefixes import rest_of
    from calibrate.served.compare import score
    from calibrate.served.floor import floors
    from calibrate.served.launches import launches
    from calibrate.served.path import carried, learn_path
    from calibrate.served.repeats import is_repeat, repeats
    from calibrate.served.replay import replay
    from calibrate.served.rested import BOOST
    from sim.posterior import rates_for

    run = _read(path, options)
    if options["known_blocks"]:
        run = replace(run, limits=replace(run.limits, num_gpu_blocks=options["known_blocks"]))
    rates = rates_for(run.gpu, run.precision, path=options["posterior"], draws=max(RATE_DRAWS, options["draws"]))
    if options["carried"] or options["path_file"] or all(e.kind == "burst" for e in run.experiments):
        given = _path_to_carry(options["path_file"])
        # no window pins these draws: as few of them as are replayed, so that their middle is the posterior's
        rates = rates_for(run.gpu, run.precision, path=options["posterior"], draws=max(2, options["draws"]))
        learnt, scored = carried(given, rates), [e for e in run.experiments if e.kind != "ladder"]
        lows = ()
    else:
        lows, ladder, scored = _split(run, options)
        learnt = learn_path(run, rates, lows, ladder, BOOST)
    draws = options["draws"]

    def replayed(e: Any) -> Any:
        return replay(run, e, learnt.rates, learnt.host, draws=draws, hosts=learnt.hosts(draws), scatter=learnt.scatter)

    if lows and len(run.experiments) == 1:  # a log: what comes after is served by the server as its first part left it
        whole, first = run.experiments[0], len(lows[0].arrival_s)
        pairs = [rest_of(whole, replayed(whole), first)]
        scored = [pairs[0][0]]
    else:
        pairs = [(e, replayed(e)) for e in scored]
    return {
        "run": run,
        "in_process": rates,
        "path": learnt,
        "pairs": pairs,
        "repeats": repeats(run.experiments),
        "iterations": _iterations(path, run, learnt) if options["iterations"] else None,
        "launches": sorted(wait for e in lows for wait, _ in launches(e)),
        "floors": [floors(run, e, learnt.rates, learnt.host, learnt.scatter) for e in scored if not is_repeat(e, run.experiments)],
        "scores": [s for experiment, predicted in pairs for s in score(experiment, predicted, learnt.beyond, learnt.run_noise)],
    }


def _iterations(path: Path, run: Any, learnt: Any) -> dict[str, Any] | None:
    from calibrate.served.iterations import beside, read_iterations
    from simctl.iterations_text import held

    found = beside(path)
    return None if found is None else held(run, learnt, read_iterations(found, len(run.experiments)))


def _path_to_carry(file: str | None) -> Any:
    from sim.errors import UsageError
    from sim.served import packaged_path, parse_path

    if file:
        return parse_path(Path(file).read_bytes(), file)
    packaged = packaged_path()
    if packaged is None:
        raise UsageError("no served path is packaged to be carried over")
    return packaged


def _read(path: Path, options: dict[str, Any]) -> Any:
    from calibrate.logs.prefixes import read_request_log
    from calibrate.served.runs import read_served
    from calibrate.served.units import check_times
    from sim.deployment import Limits
    from sim.errors import UsageError
    from sim.memory import DEFAULT_UTILIZATION
    from sim.precision import Precision
    from sim.specs.gpus import get_gpu
    from sim.specs.models import get_model
    from simctl.what_if import ENGINE_MEMORY

    if path.suffix != ".csv":
        run = read_served(path)
        check_times(run)
        return run
    if not options["model"] or not options["gpu"]:
        raise UsageError(f"{path.name}: a CSV log needs --model and --gpu")
    share = options["gpu_memory_utilization"] or ENGINE_MEMORY.get(options["engine"], DEFAULT_UTILIZATION)
    limits = Limits(
        engine=options["engine"],
        max_num_seqs=options["max_num_seqs"],
        max_num_batched_tokens=options["max_num_batched_tokens"],
        gpu_memory_utilization=share,
        enable_prefix_caching=options["enable_prefix_caching"],
    )
    precision = Precision(options["dtype"], options["kv_dtype"])
    gpu, model = get_gpu(options["gpu"]), get_model(options["model"])
    run = read_request_log(path, gpu, model, precision, limits, options["tp"], options["prefix_block"])
    check_times(run)
    return run


def _split(run: Any, options: dict[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...], list[Any]]:
    """(the low-load experiment and its repeats, ladder rungs to learn from, experiments to score)."""
    from calibrate.served.repeats import is_repeat, repeats_of
    from calibrate.served.runs import first_part
    from sim.errors import UsageError

    if len(run.experiments) == 1:
        low, rest = first_part(run.experiments[0], 0.1)
        return (low,), (), [rest]
    names = [e.name for e in run.experiments]
    if options["low_load"] is not None:
        if options["low_load"] not in names:
            raise UsageError(f"{run.name}: no experiment {options['low_load']!r}; it has {', '.join(names)}")
        low = run.experiments[names.index(options["low_load"])]
    else:
        opens = [e for e in run.experiments if e.kind == "open" and not is_repeat(e, run.experiments)]
        if not opens:
            raise UsageError(f"{run.name}: no open-loop experiment to learn the served path from; name one with --low-load")
        low = min(opens, key=lambda e: len(e.arrival_s) / max(1e-9, float(e.arrival_s[-1] - e.arrival_s[0])))
    rungs = tuple(e for e in run.experiments if e.kind == "ladder") if options["ladder"] else ()
    lows = (low, *repeats_of(low, run.experiments))
    scored = [e for e in run.experiments if not any(e is learnt for learnt in (*lows, *rungs))]
    if not scored:
        raise UsageError(f"{run.name}: nothing is left to score")
    return lows, rungs, scored


def _save_path(reports: list[dict[str, Any]], target: Path) -> None:
    import os
    from dataclasses import asdict
    from math import hypot

    from calibrate.served.launches import HOSTS_SD
    from calibrate.served.path import HOSTS_HIDDEN_SD_S
    from sim.errors import UsageError
    from sim.formula import formula_fingerprint
    from sim.served import ServedPath

    if len(reports) != 1:
        raise UsageError("--save-path needs one run: name it with --run")
    run, path = reports[0]["run"], reports[0]["path"]
    body = ServedPath(
        gpu=run.gpu.name,
        engine=run.engine,
        hidden_c0_s=float(reports[0]["in_process"].point.c0_s - path.rates.point.c0_s),
        hidden_c0_sd_s=HOSTS_HIDDEN_SD_S,
        shown=path.shown,
        shown_prefill=path.shown_prefill,
        launch=path.launch.factor,
        launch_sd=hypot(path.launch.anywhere_sd, HOSTS_SD),  # another run is another host
        late_launch_s=path.host.work.late_launch_s,
        boost=path.host.boost,
        noise=path.noise,
        run_noise=path.run_noise,
        request_s=path.host.request_s,
        prompt_token_s=path.host.prompt_token_s,
        response_s=path.host.response_s,
        serial_s=path.host.serial_s,
        token_s=path.host.token_s,
        learnt_on=f"{run.name}: {', '.join(path.learnt_on)}",
        formula=formula_fingerprint(),
    )
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(asdict(body), indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, target)
    click.echo(f"wrote {target}", err=True)
