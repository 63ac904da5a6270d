"""`simctl validate`: errors of the simulator on served runs that the calibration never saw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError
from sim.files import writable, write_text
from simctl.options.option_groups import Sectioned, Setting
from simctl.options.shared_options import host_option, log_options
from simctl.text.progress import progress

if TYPE_CHECKING:
    from calibrate.served.validation import ValidationReport

SECTIONS = {
    "What to validate": ("run", "list", "left-out", "grid", "posterior", "draws"),
    "What is fitted to the run itself": ("transferred", "overhead", "host", "save-overhead"),
    "What a log does not say of its server (--run LOG)": (
        "from-deployment", "model", "gpu", "dtype", "tp", "engine", "max-num-seqs", "max-num-batched-tokens", "max-concurrency",
        "log-option",
    ),
}  # fmt: skip
LEARNT_FROM = (
    Setting(["--learn-from"], type=click.IntRange(1), help="Requests to learn from. [default: a tenth, 20 at least]"),
    Setting(["--skip"], type=click.IntRange(0), help="Leading requests to skip. [default: those that meet a cold server]"),
)


@click.command("validate", cls=Sectioned, sections=SECTIONS)
@click.option("--run", "run_name", metavar="NAME|FILE", help="A packaged served run, a served netCDF, or a log. [default: all packaged]")
@click.option("--list", "list_runs", is_flag=True, help="List packaged measurements and posteriors, and stop.")
@click.option(
    "--grid",
    "grids",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="GRID.nc",
    help="Predict the step times of this engine grid instead of served runs; may be repeated.",
)
@click.option(
    "--transferred", is_flag=True, help="Fit nothing: take the packaged overhead as it is. [default where a run has only a burst]"
)
@click.option("--overhead", metavar="FILE", help="Take this serving overhead (from --save-overhead) as it is.")
@host_option
@click.option("--posterior", type=click.Path(path_type=Path), metavar="FILE", help="Rates from this posterior. [default: the packaged one]")
@log_options(*LEARNT_FROM)
@click.option("--draws", type=click.IntRange(0, 1000), default=20, show_default=True, help="Draws of the rates behind the intervals.")
@click.option(
    "--save-overhead",
    metavar="FILE",
    help="Write the fitted serving overhead (JSON) for simulations; of several runs, that of those with a ladder.",
)
@click.option(
    "--left-out",
    "without",
    is_flag=True,
    help="Score packaged runs with a host, model, dtype or version left out of what was learnt.",
)
@click.option("--plot", metavar="FILE", help="Also draw the coverage of intervals (PNG, SVG or PDF).")
@click.option("--json", "as_json", is_flag=True, help="Print every score as JSON on stdout.")
def command(
    run_name: str | None, grids: tuple[Path, ...], plot: str | None, save_overhead: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Replay measured served runs and print how far off the replay is.

    Same arrivals, lengths and limits; KV blocks are predicted. Rates come from engine grids. The serving overhead is fitted to one
    low-load experiment and to a ladder's decode steps, which are named and not scored. Errors are relative, per request: median and 90th
    percentile, bias (signed median), and the share of requests inside their 90 % interval. Exit 1: a metric is outside its bound.

    A log of any engine is a benchmark's result, known by its content (vllm bench serve, SGLang's bench_serving, GuideLLM, AIPerf, llmperf,
    inference-perf, InferenceX, vLLM's multi-turn benchmark), or a CSV: arrival_s, prompt_tokens, output_tokens, first_token_s, finish_s
    (seconds on one clock). The packaged overhead is refitted to its first tenth where that predicts the second tenth better.

    \b
    Examples:
      simctl validate                                 all packaged runs
      simctl validate --left-out                      what nobody measured
      simctl validate --run served_llama3.1-8b.nc     one measured here
      simctl validate --grid GRID.nc                  step times, not requests
      simctl validate --run LOG.csv --model Llama-3.1-8B --gpu H100
    """
    from calibrate.served.scores import require_in_bounds
    from simctl.from_options.served_runs import chosen_runs, validate_all
    from simctl.report.picture_files import plot_target
    from simctl.text.grid_errors import run as predict_grids
    from simctl.text.packaged import show_packaged
    from simctl.text.validate_text import show_reports

    if options["list_runs"]:
        show_packaged(as_json)
        return
    if grids:
        if run_name or options["without"] or plot or save_overhead:
            raise UsageError("--grid learns nothing: it takes --posterior, --gpu and --json")
        predict_grids(options["gpu"], grids, options["posterior"], 0, as_json)
        return
    target, saved, paths = plot_target(plot), writable(save_overhead), chosen_runs(run_name)
    if options["without"]:
        if run_name or saved or target or options["posterior"]:
            raise UsageError("--left-out takes all packaged runs and rates: leave out --run, --posterior, --save-overhead and --plot")
        _left_out(paths, options["draws"], as_json)
        return
    with progress(f"replaying {paths[0].stem}" if len(paths) == 1 else "replaying runs") as report:
        reports = validate_all(paths, options, report)
    if saved:
        _save_overheads(saved, reports)
    if target:
        _plot_reliability(target, reports)
    show_reports(reports, as_json)
    require_in_bounds([score for report in reports for score in report.scores])


def _left_out(paths: list[Path], draws: int, as_json: bool) -> None:
    from simctl.from_options.served_runs import left_out_of_all
    from simctl.text.validate_text import show_left_out

    with progress("leaving out") as report:
        found = left_out_of_all(paths, draws, report)
    show_left_out(found, as_json)


def _save_overheads(path: Path, reports: Sequence[ValidationReport]) -> None:
    from sim.rates.serving import write_overheads

    hosts = [r.served.overhead for r in reports if len(reports) == 1 or any(e.kind == "ladder" for e in r.run.experiments)]
    write_text(path, write_overheads(hosts))
    click.echo(f"wrote {path}", err=True)


def _plot_reliability(path: Path, reports: Sequence[ValidationReport]) -> None:
    from simctl.report import of_validation, picture_files
    from simctl.text.validate_text import as_dict

    reliability = next(p for p in of_validation.part_of([as_dict(r) for r in reports], "runs").pictures if p.name == "reliability")
    picture_files.plot([reliability], path)
