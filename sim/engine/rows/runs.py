"""One replica served by the engine in rows, from its first request to its last, as plain Python."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from sim.engine.config import EngineConfig
from sim.engine.rows import layout as at
from sim.engine.rows.loop import serve as serve_all
from sim.engine.rows.made import Ints, fail, given_of, make_core
from sim.engine.rows.served import Log, Served
from sim.engine.step_clock import StepTime


def serve(
    config: EngineConfig,
    steps: StepTime,
    requests: NDArray[Any],
    arrives: Ints,
    names: Ints,
    calls: Ints,
    token_ticks: int = 0,
    *,
    keep: bool = False,
    warm: Ints | None = None,
) -> tuple[NDArray[Any], Served]:
    """Requests (layout.RequestRow) that the engine gets at these ticks (ascending) when they are served, and the log, which `keep` keeps;
    `calls` are what the requests are called there. The API server takes `token_ticks` per token. The cache begins with `warm`.

    Raises OverflowError for a run of more than sim.ticks.MOST_TICKS.
    """
    requests["arrives"] = arrives
    e = make_core(config, steps, requests, names, keep=keep, heard=False, token_ticks=token_ticks, warm=warm)
    s, given, log = e.engines[0], given_of(steps), Log()
    while (reason := serve_all(e, given, len(requests))) != at.DONE:
        if reason != at.NEEDS_ROOM:
            fail(s, reason)
        log.drain(e, s)
    log.drain(e, s)
    return at.table_of(e.requests, at.RequestRow, len(requests)), log.served(calls)
