"""`simctl explain`: where the time of a request of a simulated run went."""

from __future__ import annotations

from pathlib import Path

import click

from sim.errors import UsageError


@click.command("explain")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("request_id", required=False)
@click.option("--slowest", type=click.IntRange(1), metavar="N", help="The N slowest requests instead of one by its id.")
@click.option(
    "--by", type=click.Choice(("ttft", "e2el")), help="Explain only this latency of a request; --slowest sorts by it. [default: ttft]"
)
@click.option("--plot", type=click.Path(), metavar="FILE", help="Draw replicas, iterations and the request's stages (PNG, SVG or PDF).")
@click.option("--json", "as_json", is_flag=True, help="Print all parts as JSON instead of tables.")
def command(run: Path, request_id: str | None, slowest: int | None, by: str | None, plot: str | None, as_json: bool) -> None:
    """Say where the time of a request went.

    RUN is a directory of `simctl simulate --out`, or its run.nc; REQUEST_ID is the request's name in the trace, or its
    number. TTFT and E2EL are split into stages (router, API server, queue, prefill, decode, preemption), and these by
    what a waiting request lacked, whose tokens the iterations computed, and the terms of the step time. Parts are
    ticks of the simulator's clock and add up exactly.

    \b
    Examples:
      simctl explain out/run1 17
      simctl explain out/run1 --slowest 10 --by e2el
    """
    import json

    from sim.files import plain
    from sim.netcdf import undamaged
    from sim.results import explain
    from sim.results.run_files import read_run
    from simctl.report.picture_files import plot_target
    from simctl.text.explain_text import one_request, several

    if (request_id is None) == (slowest is None):
        raise UsageError("which request? give its REQUEST_ID, or --slowest N")
    target = plot_target(plot)
    record, attrs = read_run(run)
    with undamaged(run):
        server = explain.api_server_of(attrs)
        if request_id is not None:
            found = [explain.explain(record, request_id, server)]
        else:
            found = explain.slowest(record, slowest or 1, by or "ttft", server)
        if not found:
            raise UsageError(f"{run}: no request has finished")
        if as_json:
            dicts = [plain(each.to_dict()) for each in found]
            text = json.dumps(dicts[0] if request_id is not None else dicts, indent=2, allow_nan=False)
        else:
            text = "\n".join(one_request(found[0], attrs, by) if request_id is not None else several(found, by or "ttft"))
    click.echo(text)
    if target is not None:
        from simctl.report import of_request, picture_files

        picture_files.plot([of_request.picture(record, found[0].request_id)], target)
        click.echo(f"wrote {target}", err=True)
