"""A twin that follows running servers: window by window scraped, observed, printed and kept."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from hw.serve.http_stream import StreamError, get_text
from sim.errors import SimctlError, UsageError
from sim.twin.prometheus import Snapshot, read_snapshot
from sim.twin.twin import Twin
from simctl.watch.kept import Kept
from simctl.watch.live import History
from simctl.watch.text import lines_of

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


def scrape_all(servers: Sequence[tuple[str, Mapping[str, str]]], at_s: float, patience_s: float) -> list[Snapshot | str]:
    """A snapshot of each URL, asked with its own headers, or in a few words why there is none. Never raises for what a server does."""

    async def one(url: str, headers: Mapping[str, str]) -> Snapshot | str:
        try:
            text = await asyncio.wait_for(get_text(f"{url}/metrics", headers), patience_s)
            return read_snapshot(text, at_s)
        except TimeoutError:
            return f"no answer in {patience_s:g} s"
        except StreamError as error:
            return f"refused: {error}"[:120]
        except OSError as error:
            return error.strerror or type(error).__name__
        except SimctlError as error:
            return str(error)

    async def together() -> list[Snapshot | str]:
        return await asyncio.gather(*(one(*server) for server in servers))

    return asyncio.run(together())


ROTATES_AT_BYTES = 64 << 20  # the file so far then becomes FILE.1, and the one before it goes
MOST_PER_S = 5_000.0  # requests a server could have taken: more is a counter that jumped


class LoadTrace:
    """Arrivals at `path`, or nowhere. Raises OSError where the disk takes no more."""

    def __init__(self, path: Path | None, rotates_at_bytes: int = ROTATES_AT_BYTES) -> None:
        self._path, self._limit = path, rotates_at_bytes
        if path is not None:
            path.write_text("", encoding="utf-8")

    def add(self, begin_s: float, seconds: float, count: float, prompt_tokens: float, output_tokens: float, servers: int) -> str:
        """Append a window's arrivals, evenly over it, with mean lengths: metrics say no more. Returns why there are none, or nothing."""
        if self._path is None or math.isnan(prompt_tokens):
            return ""
        if count > MOST_PER_S * seconds * servers:
            return f"{count:.3g} requests in {seconds:.3g} s: a counter jumped; they are not in the trace"
        lengths = {"prompt_tokens": max(1, round(prompt_tokens)), "output_tokens": max(1, round(output_tokens))}
        times = (begin_s + seconds * (i + 0.5) / count for i in range(round(count)))
        text = "".join(json.dumps({"arrival_s": round(each, 4)} | lengths) + "\n" for each in times)
        if self._path.stat().st_size + len(text) > self._limit:
            os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)
        return ""
