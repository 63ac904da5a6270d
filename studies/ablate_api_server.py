"""Ablation of the API server: loads of a host never seen without its terms, crowds apart from other loads (`make ablate`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np

from calibrate.measured_files import VALIDATION, served_files
from calibrate.served.left_out import LEAST_REQUESTS
from calibrate.served.replay import METRICS, replay
from calibrate.served.runs import read_served
from sim.cost.api_server import SendQueue
from sim.rates.load import load_rates
from sim.rates.serving import packaged_overhead

CROWD = 128  # clients; what a run with such a load was sent besides are the other loads
FULL, NO_TIME, NO_QUEUE, NO_WAIT = "full formula", "without a time per token", "without a queue of tokens", "without a queue of requests"


@contextmanager
def without_queue() -> Iterator[None]:
    """No token waits for those of iterations before."""
    runs, replica = (import_module(f"sim.cluster.{name}") for name in ("fleet_runs", "replica"))
    make_core = runs.make_core

    def core(*given: Any, **named: Any) -> Any:
        return make_core(*given, **{**named, "token_ticks": 0})

    with ExitStack() as stack:
        stack.enter_context(patch.object(runs, "make_core", core))
        stack.enter_context(patch.object(replica, "SendQueue", lambda ticks: SendQueue(0)))
        yield


def errors() -> dict[tuple[str, bool], list[tuple[float, ...]]]:
    """Absolute errors of median TTFT, TPOT and E2EL of each load, by ablation and whether it is a crowd."""
    found: dict[tuple[str, bool], list[tuple[float, ...]]] = {}
    for path in [path for path in served_files() if path.parent.name == VALIDATION]:
        run = read_served(path)
        if not any(e.clients >= CROWD for e in run.experiments if e.kind == "closed"):
            continue
        known = packaged_overhead((run.gpu.name, run.name), run.limits.engine)
        assert known is not None
        overhead, rates = known.elsewhere(None), load_rates(run.deployment, draws=1)
        served = overhead.applied(rates)
        for name in (FULL, NO_TIME, NO_QUEUE, NO_WAIT):
            host = overhead.host(rates)
            if name == NO_TIME:
                host = replace(host, token_s=0.0)
            elif name == NO_WAIT:
                host = replace(host, request_s=host.request_s + host.serial_s, serial_s=0.0)
            for load in run.experiments:
                if load.kind == "ladder" or load.replicate or len(load.ttft_s) < LEAST_REQUESTS:
                    continue
                with without_queue() if name == NO_QUEUE else ExitStack():
                    seen = replay(run, load, served, host)
                off = tuple(abs(float(np.nanmedian(seen.guess(m)) / np.nanmedian(getattr(load, m)) - 1)) for m in METRICS)
                found.setdefault((name, load.clients >= CROWD), []).append(off)
    return found


def api_server_table() -> str:
    """Means over loads of the errors of medians in percent, TTFT / TPOT / E2EL."""
    found = errors()
    cells = {key: " / ".join(f"{100 * each:.1f}" for each in np.mean(rows, axis=0)) for key, rows in found.items()}
    heads = ("API server", *(f"{len(found[FULL, crowd])} {what}" for crowd, what in ((True, "crowds"), (False, "other loads"))))
    lines = [heads, ["---"] * len(heads), *((name, cells[name, True], cells[name, False]) for name in (FULL, NO_TIME, NO_QUEUE, NO_WAIT))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
