"""A twin that follows running servers: window by window scraped, observed, printed and kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError
from simctl.watch.kept import Kept
from simctl.watch.live import History
from simctl.watch.load_trace import LoadTrace
from simctl.watch.scrape import scrape_all
from simctl.watch.text import lines_of

if TYPE_CHECKING:
    from sim.twin.twin import Twin

MOST_PATIENCE_S = 5.0


Servers = list[tuple[str, dict[str, str]]]


def follow(
    twin: Twin,
    servers: Servers,
    options: dict[str, Any],
    trace: Path | None,
    history: History,
    kept: Kept,
    again: Callable[[], Servers] | None = None,
) -> None:
    """Until Ctrl-C, or until --for is over. Reports go to stdout, arrivals to `trace`, what is learnt to `kept`. `again` says each time who
    serves now.
    """
    began, every, turn = time.monotonic(), options["every"], 0
    load = LoadTrace(trace)
    while True:
        if again is not None and turn:
            try:
                servers = again()
                twin.watch([url for url, _ in servers])
            except UsageError as error:
                click.echo(f"{time.strftime('%H:%M:%S')}  {error}; the servers of before are watched", err=True)
        now = time.monotonic() - began
        report = twin.observe(now, scrape_all(servers, now, min(MOST_PATIENCE_S, every)))
        clock = time.strftime("%H:%M:%S")
        history.add(report, clock)
        if options["as_json"]:
            click.echo(json.dumps(report.to_dict(), allow_nan=False))
        else:
            click.echo("\n".join(lines_of(report, clock, len(servers))))
        if twin.windows and twin.windows[-1][0] == now:  # not the last window again where no server answered
            end_s, seconds, count = twin.windows[-1]
            if lost := load.add(end_s - seconds, seconds, count, report.prompt_tokens, report.output_tokens, len(servers)):
                click.echo(f"{clock}  {lost}", err=True)
            if lost := kept.keep(twin):
                click.echo(f"{clock}  {lost}", err=True)
        turn += 1
        if options["duration"] is not None and turn * every > options["duration"]:
            return
        time.sleep(max(0.0, began + turn * every - time.monotonic()))
