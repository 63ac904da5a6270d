"""`simctl report`: saved results as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sim.files import replaced_directory, writable, write_text
from simctl import __version__

if TYPE_CHECKING:
    from simctl.report.page import ReportPart


@click.command("report")
@click.argument("inputs", type=click.Path(exists=True, path_type=Path), metavar="RESULT...", nargs=-1, required=True)
@click.option("-o", "--out", metavar="FILE", help="The HTML file to write.")
@click.option("--serve", is_flag=True, help="Show a run in a browser of this machine, with sliders, until Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Port of --serve on 127.0.0.1; 0: a free one.")
@click.option("--pictures", type=click.Path(path_type=Path), metavar="DIR", help="Also write every picture here, as PNG and SVG.")
def command(inputs: tuple[Path, ...], out: str | None, serve: bool, port: int, pictures: Path | None) -> None:
    """Make one HTML file of saved results.

    It opens without a network and has interactive pictures: latencies with bands for what is uncertain, the run over
    time, cost by term, the slowest requests explained, price against speed, rates, and the reliability of intervals.

    \b
    RESULT is any of:
      the folder of           simctl simulate --out DIR
      the store of            simctl sweep SCENARIO -o OUT.zarr
      the file of             simctl calibrate ... -o FILE (a posterior)
      what these print:       simctl plan --json > plan.json
                              simctl validate --json > validation.json
                              simctl what-if --map hbm --json > map.json
                              simctl replicate all --json > claims.json

    \b
    Example:
      simctl simulate --gpu H100 --model Llama-3.1-8B --num-prompts 400 \\
          --request-rate 8 --out out/run
      simctl report out/run -o report.html

    With --serve it shows one run, and below its sliders what another load, number of replicas or prompt length would
    give: each move simulates a short run.

    Needs the extra `report`, and says what to install where it is missing.
    """
    from sim.errors import UsageError
    from simctl.report.inputs import part_of
    from simctl.report.page import vega
    from simctl.report.report_question import MOST

    if len(inputs) > MOST:
        raise UsageError(f"a report has at most {MOST} results, got {len(inputs)}")
    vega()
    if serve:
        if len(inputs) > 1 or out or pictures:
            raise UsageError("--serve shows one run and writes no file: leave out other results, -o and --pictures")
        _serve(inputs[0], port)
        return
    target = writable(out)
    if target is None:
        raise UsageError("where to? give -o FILE, or --serve")
    _write(target, pictures, [part_of(path) for path in inputs])
    for written in (target, pictures):
        if written is not None:
            click.echo(f"wrote {written}", err=True)


def _write(target: Path, pictures: Path | None, parts: Sequence[ReportPart]) -> None:
    from simctl.report.page import render
    from simctl.report.picture_files import named, write_pictures

    if pictures is None:
        write_text(target, render(parts, __version__))
        return
    every = named(parts)
    with replaced_directory(pictures, [f"{name}.{kind}" for name, _ in every for kind in ("png", "svg")]) as staged:
        write_pictures(staged, every)
        write_text(target, render(parts, __version__))


def _serve(run: Path, port: int) -> None:
    from sim.errors import INTERRUPTED
    from simctl.report.serve import serve

    try:
        serve(run, port)
    except KeyboardInterrupt:  # nothing is left undone
        raise click.exceptions.Exit(INTERRUPTED) from None
