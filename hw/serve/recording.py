"""Iterations of a server, written down by a scheduler of vLLM's that decides nothing by itself, and kept by experiment.

A line an iteration costs the engine some 50 us of host work, which its GPU does not wait for. Times are of the machine's clock (s since
1970) while they are written, and count from the beginning of their experiment in the table.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from hw.artifact import table
from hw.engines.composition import work_of

SCHEDULER = "hw.serve.recording.Recording"  # as `--scheduler-cls` takes it
LOG_ENVIRONMENT = "SIMCTL_ITERATIONS"  # path of the log, as the server's process gets it
FLUSH_EVERY = 100  # lines: a server that is killed loses no more
ITERATION = {
    "iteration_experiment_index": ("index into the experiment dimension", "1"),
    "decided_s": ("when the scheduler was asked for it, from the beginning of its experiment", "s"),
    "scheduled_s": ("when it had decided", "s"),
    "collected_s": ("when the engine had its tokens", "s"),
    "decode_seqs": ("sequences computing exactly one token", "1"),
    "decode_context_tokens": ("tokens that those had cached, summed", "tokens"),
    "context_sd_tokens": ("standard deviation of those contexts", "tokens"),
}
CHUNK = {
    "chunk_iteration": ("index into the iteration dimension, of every sequence computing other than one token", "1"),
    "chunk_new_tokens": ("tokens it computed", "tokens"),
    "chunk_cached_tokens": ("tokens it had cached", "tokens"),
}
COLUMNS = len(ITERATION)  # of a line of the log: times, decodes and, last, the chunks


def line(decided_s: float, scheduled_s: float, collected_s: float, work: Iterable[tuple[int, int]]) -> str:
    """One iteration as a line of the log; `work` is (new, cached) tokens of every sequence."""
    contexts, chunks = [], []
    for new, cached in work:
        if new == 1:
            contexts.append(cached)
        else:
            chunks.append(f"{new}@{cached}")
    n, total = len(contexts), sum(contexts)
    apart = math.sqrt(max(n * sum(c * c for c in contexts) - total * total, 0)) / n if n else 0.0
    return f"{decided_s:.6f},{scheduled_s:.6f},{collected_s:.6f},{n},{total},{apart:.3f},{' '.join(chunks)}\n"


def recording(scheduler: type[Any]) -> type[Any]:
    """A class of `scheduler` that appends to the file of LOG_ENVIRONMENT a line for every iteration whose tokens came."""

    class Recording(scheduler):  # type: ignore[misc]
        """The scheduler, and its log."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._log = open(os.environ[LOG_ENVIRONMENT], "a", encoding="ascii", buffering=1 << 20)  # noqa: SIM115 (as long as the engine)
            self._lines = 0

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            decided_s = time.time()
            decision = super().schedule(*args, **kwargs)
            decision.simctl_times = (decided_s, time.time())
            return decision

        def update_from_output(self, decision: Any, *args: Any, **kwargs: Any) -> Any:
            collected_s = time.time()
            outputs = super().update_from_output(decision, *args, **kwargs)
            if decision.num_scheduled_tokens:
                decided_s, scheduled_s = decision.simctl_times
                self._log.write(line(decided_s, scheduled_s, collected_s, work_of(decision)))
                self._lines += 1
                if self._lines % FLUSH_EVERY == 0 or not self.has_requests():
                    self._log.flush()
            return outputs

        def shutdown(self) -> None:
            super().shutdown()
            self._log.close()

    return Recording


def __getattr__(name: str) -> Any:
    """`Recording`, vLLM's asynchronous scheduler recording: what `--scheduler-cls` names. Only an engine's process can make it."""
    if name != "Recording":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    return recording(AsyncScheduler)


def by_experiment(log: Iterable[str], begins_s: Sequence[float]) -> list[list[Any]]:
    """[index of the experiment, times from its beginning, decodes, chunks as text] of every iteration of a log, given the times at which
    its experiments began, in any order; what came before the first of them is left out, and so is a last line cut short.
    """
    order = sorted(range(len(begins_s)), key=begins_s.__getitem__)
    rows: list[list[Any]] = []
    place = -1
    for text in log:
        cells = text.rstrip("\n").split(",")
        if len(cells) != COLUMNS or not text.endswith("\n"):
            continue
        decided, *more = map(float, cells[:3])
        while place + 1 < len(order) and begins_s[order[place + 1]] <= decided:
            place += 1
        if place >= 0:
            index = order[place]
            times = [round(t - begins_s[index], 6) for t in (decided, *more)]
            rows.append([index, *times, int(cells[3]), int(cells[4]), float(cells[5]), cells[6]])
    return rows


def variables(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Those rows as xarray variables, ITERATION along `iteration` and CHUNK along `chunk`."""
    chunks = [(i, *map(int, part.split("@"))) for i, row in enumerate(rows) for part in str(row[-1]).split()]
    return table("iteration", [dict(zip(ITERATION, row, strict=False)) for row in rows], ITERATION) | table(
        "chunk", [dict(zip(CHUNK, chunk, strict=True)) for chunk in chunks], CHUNK
    )
