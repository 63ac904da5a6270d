"""Timeline of a request, from its sending to its last token: pieces without gaps or overlap, from the log of its run.

Recorded times are whole ticks of the simulator's clock (sim.ticks), rounded to floats beyond 8 s; here they are ticks again, and integers.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.engine.interface import BLOCKS, BUDGET, LOST, SLOTS
from sim.errors import SimctlError
from sim.results.record import (
    AT_ENGINE,
    HANDED_OVER,
    PAUSED,
    PREEMPTED,
    REPLICA_FAILED,
    SAMPLED_AGAIN,
    SUBMITTED_AGAIN,
    RunRecord,
)
from sim.ticks import TICK_S, to_ticks

ROUTER, API_SERVER, KV, MOVED = "router", "api_server", "kv", "moved"
QUEUE, PREFILL, STALLED, SET_BACK, LOST_WORK, AGAIN, DECODE = "queue", "prefill", "stalled", "preempted", "lost", "recompute", "decode"
UNDER_WAY, NOT_SAID = "under_way", "not_said"
LACKS = {BUDGET: "budget", SLOTS: "slots", BLOCKS: "kv_blocks"}


class Piece(NamedTuple):
    """A stage from `begin` to `end` (ticks), during one iteration of its replica or (-1) of none; of the queue, what was lacking."""

    stage: str
    begin: int
    end: int
    iteration: int = -1
    why: str = ""

    @property
    def ticks(self) -> int:
        """Duration, ticks."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Timeline:
    """A request's times in ticks, and the pieces between `arrival` and `stop`.

    `first` and `stop` are when its first and its last token were sampled, `had_first` and `over` when its client had them. A request that
    did not finish was `over` when its client gave up or its replica failed, and that was its `stop` if its last token was not sampled.
    `first` and `had_first` are None where there was none by then.
    """

    arrival: int
    first: int | None
    had_first: int | None
    stop: int
    over: int
    finished: bool
    pieces: tuple[Piece, ...]


class _Event(NamedTuple):
    ticks: int
    kind: int
    replica: int


class _Life(NamedTuple):
    """A request's time in one engine."""

    replica: int
    begin: int
    end: int


class _Step(NamedTuple):
    """An iteration, by its place in the log."""

    place: int
    start: int
    end: int
    decided: int


def timeline(record: RunRecord, row: int) -> Timeline:
    """The request in this row. Raises SimctlError when it was turned away or has not finished, or when the run kept no iteration log."""
    name, rejected = record.request_ids[row], int(record.requests["rejected"][row])
    if rejected and rejected != LOST:
        raise SimctlError(f"request {name!r} was turned away: it waited for nothing")
    if not len(record.iterations["start_s"]):
        raise SimctlError("the run kept no iteration log: simulate it again with --iterations")
    seconds = {key: float(values[row]) for key, values in record.requests.items() if key.endswith("_s")}
    times = {key: to_ticks(value) for key, value in seconds.items() if not math.isnan(value)}
    events = _events(record, row)
    if rejected:
        times.update(("lost_s", event.ticks) for event in events if event.kind == REPLICA_FAILED)
    over = next((times[key] for key in ("finish_s", "cancelled_s", "lost_s") if key in times), None)
    if over is None:
        raise SimctlError(f"request {name!r} has not finished")
    times = {key: ticks for key, ticks in times.items() if ticks <= over}
    stop = times.get("last_sampled_s", over)
    pieces = tuple(piece for piece in _walk(record, row, times, events, stop) if piece.ticks)
    return Timeline(
        times["arrival_s"], times.get("first_sampled_s"), times.get("first_token_s"), stop, over, "finish_s" in times, pieces
    )  # fmt: skip


def _events(record: RunRecord, row: int) -> list[_Event]:
    """Events of a request, in order."""
    columns = record.events
    mine = np.flatnonzero(columns["event_request"] == row)
    mine = mine[np.argsort(columns["event_s"][mine], kind="stable")]
    rows = zip(*(columns[name][mine].tolist() for name in ("event_s", "event_kind", "event_replica")), strict=True)
    return [_Event(to_ticks(seconds), int(kind), int(replica)) for seconds, kind, replica in rows]


def _walk(record: RunRecord, row: int, times: dict[str, int], events: Sequence[_Event], stop: int) -> Iterator[Piece]:
    """Pieces from the sending to `stop`."""
    reached = times.get("reached_s", stop)
    submitted = times.get("submitted_s", stop)
    yield Piece(ROUTER, times["arrival_s"], reached)
    yield from _outside(API_SERVER, reached, submitted, events)
    chunks = set(record.chunks["chunk_iteration"][record.chunks["chunk_request"] == row].astype(int).tolist())
    now = submitted
    for life in _lives(int(record.requests["replica"][row]), submitted, events, stop):
        yield from _outside(MOVED, now, life.begin, events)
        yield from _inside(record, life, events, chunks, times.get("first_sampled_s", stop))
        now = life.end
    yield from _outside(MOVED, now, stop, events)


def _outside(stage: str, begin: int, end: int, events: Sequence[_Event]) -> Iterator[Piece]:
    """On the way to an API server and through it, then waiting for KV."""
    waits = next((event.ticks for event in events if event.kind == AT_ENGINE and begin <= event.ticks <= end), end)
    yield Piece(stage, begin, waits)
    yield Piece(KV, waits, end)


def _lives(last: int, submitted: int, events: Sequence[_Event], stop: int) -> Iterator[_Life]:
    """The times in engines until `stop`; `last` is the last replica."""
    begin: int | None = submitted
    for event in events:
        if event.kind in (REPLICA_FAILED, HANDED_OVER) and begin is not None:
            yield _Life(event.replica, begin, min(event.ticks, stop))
            begin = None
        elif event.kind == SUBMITTED_AGAIN:
            begin = event.ticks
    if begin is not None:
        yield _Life(last, begin, max(begin, stop))


def _inside(record: RunRecord, life: _Life, events: Sequence[_Event], chunks: set[int], first: int) -> Iterator[Piece]:
    """Pieces of a life, an iteration each."""
    steps = _steps(record, life)
    now, stage = life.begin, QUEUE
    for step, stage_here in zip(steps, _stages(life, steps, events, chunks, first), strict=True):
        # before a start no iteration ran, or one of which the replica's failure left nothing
        yield Piece(stage, now, max(step.start, now), why=NOT_SAID if stage == QUEUE else "")
        now, stage = max(step.start, now), stage_here
        end = max(min(step.end, life.end), now)
        yield Piece(stage, now, end, step.place, _lacked(record, step, life) if stage == QUEUE else "")
        now = end
    yield Piece(stage, now, life.end, why=NOT_SAID if stage == QUEUE else "")


def _steps(record: RunRecord, life: _Life) -> list[_Step]:
    """The replica's iterations during a life, in order."""
    log = record.iterations
    stop_s = log["start_s"] + log["duration_s"]
    near = (log["iteration_replica"] == life.replica) & (log["start_s"] < life.end * TICK_S) & (stop_s > life.begin * TICK_S)
    places = np.flatnonzero(near)
    times = ([to_ticks(seconds) for seconds in column[places].tolist()] for column in (log["start_s"], stop_s, log["decided_s"]))
    return [_Step(*each) for each in zip(places.tolist(), *times, strict=True)]


def _lacked(record: RunRecord, step: _Step, life: _Life) -> str:
    """Resource that a waiting request lacked when this iteration was decided; nothing, where that was before it came."""
    return UNDER_WAY if step.decided < life.begin else LACKS.get(int(record.iterations["short_of"][step.place]), NOT_SAID)


def _stages(life: _Life, steps: Sequence[_Step], events: Sequence[_Event], chunks: set[int], first: int) -> Iterator[str]:
    """The stage in each iteration; `first` is when the first token was sampled."""
    losses = [event.ticks for event in events if event.kind in (PREEMPTED, REPLICA_FAILED) and event.ticks < first]
    preemptions = [event.ticks for event in events if event.kind == PREEMPTED and life.begin <= event.ticks <= life.end]
    idle = _idle(life, steps, events, first)
    started = set_back = False
    for number, step in enumerate(steps):
        while preemptions and preemptions[0] <= step.start:
            del preemptions[0]
            started, set_back = False, True
        early = step.start < first
        if step.place in chunks:
            started = True
            computed = LOST_WORK if any(step.start < ticks for ticks in losses) else PREFILL
            yield computed if early else AGAIN
        elif not early and number not in idle:
            yield DECODE
        elif started:
            yield STALLED
        else:
            yield QUEUE if early and not set_back else SET_BACK


def _idle(life: _Life, steps: Sequence[_Step], events: Sequence[_Event], first: int) -> set[int]:
    """Numbers of the iterations after the first token in which the request did not sample."""
    starts = [step.start for step in steps]
    found: set[int] = set()
    since: int | None = None
    for event in events:
        if event.kind in (PAUSED, REPLICA_FAILED) and event.ticks >= first and since is None:
            since = event.ticks
        elif event.kind == SAMPLED_AGAIN and since is not None:
            # the iteration that ends there is the one that sampled
            found.update(range(_from(since, starts, life), bisect_left(starts, event.ticks) - 1))
            since = None
    if since is not None:
        found.update(range(_from(since, starts, life), len(starts)))
    return found


def _from(since: int, starts: list[int], life: _Life) -> int:
    """The first iteration of a life that a pause holds: one that ran when the life began has nothing of it."""
    return 0 if since <= life.begin else bisect_left(starts, since)
