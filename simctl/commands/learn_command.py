"""`simctl learn`: rates learnt from the requests of a served log, "calibrate to my production"."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError
from sim.files import writable, write_text
from simctl.options.option_groups import Sectioned
from simctl.options.shared_options import fit_option, log_options

if TYPE_CHECKING:
    from calibrate.served.check import CheckAnswer

SECTIONS = {
    "What a log does not say of its server": (
        "from-deployment", "model", "gpu", "dtype", "tp", "engine", "max-num-seqs", "max-num-batched-tokens", "max-concurrency",
        "log-option",
    ),
    "Sampling": ("fit-option",),
}  # fmt: skip


@click.command("learn", cls=Sectioned, sections=SECTIONS)
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", type=click.Path(path_type=Path))
@log_options()
@click.option("--out", type=click.Path(path_type=Path), help="Write the posterior here (InferenceData netCDF).")
@click.option(
    "--host-out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Learn the server's host alone, in seconds, and write its host file, for --host of other commands.",
)
@fit_option()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(logs: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Learn the rates behind served logs, request by request, through the simulator.

    Every LOG is of one server, which is checked first (`simctl check`); several loads teach more than one.
    It is a benchmark's result, known by its content (see `simctl validate`), or a CSV with the columns
    arrival_s, prompt_tokens, output_tokens, first_token_s, finish_s and optionally gave_up_s, seconds on one clock, and session or
    prefix_ids as in `simctl validate`; or what `simctl measure --url` wrote, whose open loops are learnt from.

    Exits 1, and writes nothing, when a gate of the sampler fails or the rates learnt do not reproduce their own log.

    \b
    Examples:
      simctl learn LOG.json --gpu h100 --model Llama-3.1-8B
      simctl learn LOW.csv HIGH.csv --gpu l40s --model Qwen3-14B --out mine.nc
      simctl measure --suite served --url http://HOST:8000 --model NAME \\
        --rates 2 --experiments 'open 2/s' -o probe
      simctl learn probe/served_NAME_url.nc --gpu h100 --model Llama-3.1-8B \\
        --host-out host.json
    """
    from calibrate.backend import check_samplers
    from calibrate.log_questions import LEARN, Learn
    from calibrate.measured_files import resolved
    from simctl.from_options.check_question import check_of
    from simctl.from_options.logs import reading_of, served_by
    from simctl.text.learn_text import show

    writable(options["out"])
    target, paths = writable(options["host_out"]), [resolved(log) for log in logs]
    if target is None:
        check_samplers()
    elif options["out"] is not None:
        raise UsageError("--host-out learns the host alone: leave out --out")
    checked = check_of([str(path) for path in paths], options).answer()
    if target is not None:
        _write_host(checked, target, as_json)
        return
    checked.require_learnable()
    settings = replace(LEARN, draws=options["draws"] or LEARN.draws, chains=options["chains"], seed=options["seed"])
    question = Learn(paths, served_by(options), settings, options["from_datasheet"], reading_of(options))
    found = question.answer(lambda what: click.echo(what, err=True))
    report = {"log": paths[0].name, "check": checked.verdict, **found.report}
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        show(report)
    if not options["allow_unconverged"]:
        found.require()
    if options["out"] is not None:
        written = found.save(options["out"])
        click.echo(f"wrote {written} ({written.stat().st_size / 1e3:.0f} kB)", err=True)


def _write_host(checked: CheckAnswer, target: Path, as_json: bool) -> None:
    from simctl.text.learn_text import show_host

    text = checked.host.text()
    show_host(checked, as_json)
    write_text(target, text)
    click.echo(f"wrote {target}", err=True)
