"""A twin that follows running servers: window by window scraped, observed, printed and kept."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simctl.watch.live import History
from simctl.watch.scrape import scrape_all
from simctl.watch.text import lines_of

if TYPE_CHECKING:
    from sim.twin.twin import Twin

MOST_PATIENCE_S = 5.0


def follow(twin: Twin, servers: list[tuple[str, dict[str, str]]], options: dict[str, Any], trace: Path | None, history: History) -> None:
    """Until Ctrl-C, or until --for is over. Reports go to stdout, arrivals to `trace`."""
    began, every, turn = time.monotonic(), options["every"], 0
    with trace.open("w", encoding="utf-8") if trace else open("/dev/null", "w", encoding="utf-8") as load:
        while True:
            now = time.monotonic() - began
            report = twin.observe(now, scrape_all(servers, now, min(MOST_PATIENCE_S, every)))
            clock = time.strftime("%H:%M:%S")
            history.add(report, clock)
            if options["as_json"]:
                click.echo(json.dumps(report.to_dict(), allow_nan=False))
            else:
                click.echo("\n".join(lines_of(report, clock, len(servers))))
            if twin.windows and twin.windows[-1][0] == now:  # not the last window again where no server answered
                _write_arrivals(load.write, twin, report.prompt_tokens, report.output_tokens)
            load.flush()
            turn += 1
            if options["duration"] is not None and turn * every > options["duration"]:
                return
            time.sleep(max(0.0, began + turn * every - time.monotonic()))


def _write_arrivals(write: Callable[[str], Any], twin: Twin, prompt: float, output: float) -> None:
    """Arrivals of the last window, evenly over it, with mean lengths: metrics say no more."""
    if math.isnan(prompt):
        return
    end, seconds, count = twin.windows[-1]
    lengths = {"prompt_tokens": max(1, round(prompt)), "output_tokens": max(1, round(output))}
    for i in range(round(count)):
        write(json.dumps({"arrival_s": round(end - seconds + seconds * (i + 0.5) / count, 4)} | lengths) + "\n")
