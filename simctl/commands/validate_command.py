"""`simctl validate`: errors of the simulator on served runs that the calibration never saw."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import SimctlError, UsageError
from sim.files import writable, write_text
from simctl.options import GPU, MODEL, SHARE, Sectioned
from simctl.text.progress import progress

if TYPE_CHECKING:
    from calibrate.served.left_out import LeftOut
    from calibrate.served.runs import ServedRun
    from calibrate.served.validation import Asked, Report

PACKAGED = "data/measured"
DEPLOYMENT = ("model", "gpu", "dtype", "kv_dtype", "tp", "engine", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization",
              "enable_prefix_caching")  # fmt: skip
SECTIONS = {
    "What to validate": ("run", "list", "left-out", "grid", "worst", "known-blocks", "posterior", "draws"),
    "What is fitted to the run itself": ("low-load", "ladder", "learn-from", "skip", "transferred", "overhead", "save-overhead"),
    "What a log does not say of its server (--run LOG)": (
        *(name.replace("_", "-") for name in DEPLOYMENT),
        "prefix-block",
        "max-concurrency",
        "assume-prefix",
    ),
}


@click.command("validate", cls=Sectioned, sections=SECTIONS)
@click.option("--run", "run_name", metavar="NAME|FILE", help="A packaged served run, a served netCDF, or a log. [default: all packaged]")
@click.option("--list", "list_runs", is_flag=True, help="List packaged measurements and posteriors, and stop.")
@click.option(
    "--grid",
    "grids",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="GRID.nc",
    help="Instead: predict this engine grid (may be repeated) with a posterior, and learn nothing.",
)
@click.option("--worst", default=0, show_default=True, type=click.IntRange(0), help="Of --grid: also list so many cells, worst first.")
@click.option("--low-load", metavar="NAME", help="Experiment to fit the overhead to. [default: the open loop with the lowest rate]")
@click.option("--ladder/--no-ladder", default=True, show_default=True, help="Fit the hidden host work to a ladder's decode windows.")
@click.option("--learn-from", type=click.IntRange(1), metavar="N", help="Requests of a log to learn from. [default: a tenth, 20 at least]")
@click.option(
    "--skip", type=click.IntRange(0), metavar="N", help="Requests of a log before those. [default: while they meet a cold server]"
)
@click.option(
    "--transferred", is_flag=True, help="Fit nothing: take the packaged overhead as it is. [default where a run has only a burst]"
)
@click.option("--overhead", metavar="FILE", help="Take this serving overhead (from --save-overhead) as it is.")
@click.option("--known-blocks", type=click.IntRange(2), metavar="N", help="KV blocks the engine reported, instead of those predicted.")
@click.option("--posterior", type=click.Path(path_type=Path), metavar="FILE", help="Rates from this posterior. [default: the packaged one]")
@click.option("--model", type=MODEL, help="Model it served: catalogue name or config.json.  [required with a log]")
@click.option("--gpu", type=GPU, help="GPU it ran on.  [required with a log]")
@click.option("--dtype", default="bf16", show_default=True, help="Weight dtype.")
@click.option("--kv-dtype", default="bf16", show_default=True, help="KV-cache dtype.")
@click.option("--tp", "-tp", default=1, show_default=True, type=click.IntRange(1, 64), help="GPUs per replica.")
@click.option("--engine", default="vllm", show_default=True, help="vllm, sglang, llamacpp, or a scheduler class's dotted path.")
@click.option("--max-num-seqs", type=click.IntRange(1), help="Engine limit it was taken under. [default: the engine's]")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Engine limit it was taken under. [default: the engine's]")
@click.option("--gpu-memory-utilization", type=SHARE, help="Share of memory that the engine used. [default: the engine's]")
@click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=None, help="Whether it cached prefixes. [default: on]")
@click.option("--prefix-block", default=512, show_default=True, type=click.IntRange(1), help="Tokens that one of prefix_ids stands for.")
@click.option("--max-concurrency", type=click.IntRange(1), metavar="N", help="Requests the benchmark kept in flight. [default: as it says]")
@click.option("--assume-prefix", type=click.IntRange(0), default=0, metavar="N", help="Tokens all prompts began with, if unsaid.")
@click.option("--draws", type=click.IntRange(0, 1000), default=16, show_default=True, help="Draws of the rates behind the intervals.")
@click.option(
    "--save-overhead",
    metavar="FILE",
    help="Write the serving overhead fitted (JSON), for simulations to use; of several runs those with a ladder.",
)
@click.option(
    "--left-out",
    "without",
    is_flag=True,
    help="Instead: how far off packaged runs are where a host, model, dtype or version is left out.",
)
@click.option("--plot", metavar="FILE", help="Also draw the reliability diagram to a PNG or SVG file.")
@click.option("--json", "as_json", is_flag=True, help="Print every score as JSON on stdout.")
def command(
    run_name: str | None, list_runs: bool, grids: tuple[Path, ...], worst: int, plot: str | None, save_overhead: str | None, without: bool,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Replay measured served runs and print how far off the replay is.

    Same arrivals, lengths and limits; KV blocks predicted, not given. The rates come from engine grids; the serving overhead is fitted
    to one low-load experiment and the true-decode windows of a ladder, which are named and not scored. Errors are relative, per request:
    median and 90th percentile of the absolute value, bias (the median), and the share of requests inside their 90 % interval. `MISS*` is
    a miss where replicates of the load lie so far apart themselves that no prediction could be expected to hold the bound.

    A log of any engine is a benchmark's result, known by its content (vllm bench serve, SGLang's bench_serving, GuideLLM, AIPerf, llmperf,
    inference-perf, InferenceX, vLLM's multi-turn benchmark), as `simctl learn` reads them, or a CSV with the
    columns arrival_s, prompt_tokens, output_tokens, first_token_s, finish_s (seconds on one clock). It may have cached_tokens, which are
    compared, client (who sends when its last answer came back), and say what prompts share: session (later requests of a session repeat
    all that was said before), system_prompt with system_tokens (prompts of one name begin with the same tokens), or instead prefix_ids (ids
    of the prompt's blocks of --prefix-block tokens, separated by spaces). All of it is replayed. The packaged overhead is refitted to
    its first tenth where that predicts the second tenth better; the rest is scored.

    Exit 1 when a metric is outside its declared bound: TTFT 5 %, TPOT 2 %, E2EL 2 % (median; 5 % in a burst), p99 TTFT 10 %.

    \b
    Examples:
      simctl validate                                 all packaged runs
      simctl validate --left-out                      what nobody measured
      simctl validate --run served_llama3.1-8b.nc     one measured here
      simctl validate --grid GRID.nc                  step times, not requests
      simctl validate --run LOG.csv --model Llama-3.1-8B --gpu H100
      simctl validate --run LOG.csv --model Qwen3-14B --gpu H200 --engine sglang
    """
    from simctl.text.validate_text import as_dict, render, together

    if list_runs:
        from simctl.text.packaged import show_packaged

        show_packaged(as_json)
        return
    if grids:
        from simctl.text.grid_errors import run as predict_grids

        if run_name or without or plot or save_overhead:
            raise UsageError("--grid learns nothing: it takes --posterior, --gpu, --worst and --json")
        predict_grids(options["gpu"], grids, options["posterior"], 0, worst, as_json)
        return
    packaged = _packaged()
    target, saved, paths = writable(plot), writable(save_overhead), _chosen(run_name, packaged)
    if without:
        if run_name or saved or target or options["posterior"]:
            raise UsageError("--left-out takes all packaged runs and rates: leave out --run, --posterior, --save-overhead and --plot")
        _left_out(paths, options["draws"], as_json)
        return
    reports = list(_reports(paths, options, _asked(options)))
    if saved:
        from sim.rates.serving import write_overheads

        hosts = [r.served.overhead for r in reports if len(reports) == 1 or any(e.kind == "ladder" for e in r.run.experiments)]
        write_text(saved, write_overheads(hosts))
        click.echo(f"wrote {saved}", err=True)
    if target:
        from simctl.plots.answer_plots import plot_reliability

        plot_reliability({r.run.name: (r.pairs, r.served.overhead.noise, r.served.overhead.run_noise) for r in reports}, target)
    if as_json:
        click.echo(json.dumps([as_dict(r) for r in reports], indent=1))
    else:
        for report in reports:
            render(report)
        if len(reports) > 1:
            click.echo(together(reports))
    scores = [s for r in reports for s in r.scores]
    if missed := [s for s in scores if not s.within]:
        floor = sum(s.floor_above for s in missed)
        of_them = f"; of {floor} of them the replicate floor does, too" if floor else ""
        raise SimctlError(f"{len(missed)} of {len(scores)} scores lie outside their declared bounds{of_them}")


def _left_out(paths: list[Path], draws: int, as_json: bool) -> None:
    from simctl.text.validate_text import left_out_cells, left_out_cells_table, left_out_rows, left_out_table

    with progress("leaving out") as report:
        found = [each for several in _in_processes(_left_out_of, paths, (draws,), report) for each in several]
    if as_json:
        click.echo(json.dumps({"pooled": left_out_rows(found), "by_load": left_out_cells(found)}, indent=1))
    else:
        click.echo(f"{left_out_table(found)}\n\n{left_out_cells_table(found)}")


def _left_out_of(path: Path, draws: int) -> list[LeftOut]:
    from calibrate.served.left_out import left_out
    from calibrate.served.runs import read_served

    return list(left_out(read_served(path), draws))


def _packaged() -> dict[str, Path]:
    from importlib.resources import files

    root = Path(str(files("scenarios"))) / PACKAGED
    return {f"{p.parent.name}/{p.stem}": p for p in sorted(root.glob("*/served_*.nc"))}


def _chosen(name: str | None, packaged: dict[str, Path]) -> list[Path]:
    from difflib import get_close_matches

    if name is None:
        if not packaged:
            raise UsageError("served runs come with the source tree, not with an installed package: give one with --run FILE")
        return list(packaged.values())
    if name in packaged:
        return [packaged[name]]
    if Path(name).is_file():
        return [Path(name)]
    close = get_close_matches(name, packaged, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    raise UsageError(f"unknown run {name!r}{hint} known: {', '.join(packaged) or 'none'}; or the path of a file")


def _asked(options: dict[str, Any]) -> Asked:
    from calibrate.served.validation import Asked
    from sim.rates.serving import parse_overhead

    file = options["overhead"]
    overhead = parse_overhead(Path(file).read_bytes(), file) if file else None
    names = ("posterior", "draws", "low_load", "ladder", "transferred", "learn_from", "skip")
    return Asked(**{name: options[name] for name in names}, overhead=overhead)


def _reports(paths: list[Path], options: dict[str, Any], asked: Asked) -> Iterator[Report]:
    """Reports in the order of the runs, several at a time in processes of their own, with progress on stderr."""
    if len(paths) == 1:
        with progress(f"replaying {paths[0].stem}"):
            found = _validated(paths[0], options, asked)
        yield found
        return
    with progress("replaying runs") as report:
        yield from _in_processes(_validated, paths, (options, asked), report)


def _in_processes(each: Callable[..., Any], paths: list[Path], more: tuple[Any, ...], report: Any) -> list[Any]:
    """What `each` finds of every path, in their order: several at a time, the longest first."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from sim.workers import end_with_parent

    workers = min(len(paths), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=end_with_parent) as pool:
        tasks = {path: pool.submit(each, path, *more) for path in sorted(paths, key=lambda p: -p.stat().st_size)}
        for done, _ in enumerate(as_completed(tasks.values()), 1):
            if report:
                report(done, len(paths))
        return [tasks[path].result() for path in paths]


def _validated(path: Path, options: dict[str, Any], asked: Asked) -> Report:
    from dataclasses import replace

    from calibrate.served.time_units import check_times
    from calibrate.served.validation import validate

    run = _read(path, options)
    if options["known_blocks"]:
        run = replace(run, limits=replace(run.limits, num_gpu_blocks=options["known_blocks"]))
    check_times(run)
    return validate(run, asked)


def _read(path: Path, options: dict[str, Any]) -> ServedRun:
    from calibrate.logs.read import is_log, read_log
    from calibrate.served.runs import read_served
    from sim.study.deployment import Deployment

    if not is_log(path):
        of = {name: options[name] for name in DEPLOYMENT}
        return read_served(path, told=Deployment.of(**of) if options["model"] and options["gpu"] else None)
    if not options["model"] or not options["gpu"]:
        raise UsageError(f"{path.name}: a log needs --model and --gpu")
    deployment = Deployment.of(**{name: options[name] for name in DEPLOYMENT})
    told = {"block_tokens": options["prefix_block"], "clients": options["max_concurrency"], "assume_prefix": options["assume_prefix"]}
    return read_log(path, **told).served_by(deployment, path.stem)
