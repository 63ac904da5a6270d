"""An engine of sim.cluster.replica over the array core (sim.engine.core): the replica's clock drives it, and it tells what it sends.

Not covered, and named by `uncovered`: the long-prefill threshold (a decode may then have to wait), a prefill interval, costs that depend on
each sequence's context, and priorities where engines are not given all requests beforehand.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

import sim.cluster.fleet_state as on
import sim.engine.core_state as at
from sim.cost.step_time import NAMES
from sim.engine import compiled as compiler
from sim.engine.config import EngineConfig
from sim.engine.core import advance
from sim.engine.core_state import Core, make_core, supply
from sim.engine.core_time import arrive
from sim.engine.interface import Request
from sim.engine.loop import Wait
from sim.engine.replica_runs import UNKNOWN, given_of
from sim.engine.step_clock import StepTime
from sim.engine.versions import rules_of
from sim.engine.vllm import check_fits
from sim.ticks import COMPLETION, DECISION, TICK_S

RANKS = COMPLETION, DECISION


class RequestLog(Protocol):
    """Notified of what happens to requests (sim.results.record.RunLog)."""

    def scheduled(self, request: Request, ticks: int) -> None: ...
    def first_token(self, request: Request, replica: int, end_s: float, place: int, fresh: int) -> None: ...
    def last_token(self, request: Request, end_s: float, place: int) -> None: ...


def uncovered(config: EngineConfig, steps: StepTime, ranks: bool = False) -> str:
    """Why the array engine cannot stand for this one; nothing where it can. `ranks`: it is given priorities and names of all requests
    beforehand.

    By priority, a request may leave that has its token of the iteration already. Without overlap its last block can then be found, though
    it was never computed: the core does not count such blocks.
    """
    unfound = config.overlaps or not config.enable_prefix_caching
    ranked = ranks and unfound and config.scheduler == "vllm" and rules_of(config.engine_version).goes_on
    others = sorted(set(config.options) - {"async_scheduling"})
    reasons = (
        (config.scheduler != "vllm", f"engine {config.scheduler}"),
        (config.policy != "fcfs" and not ranked, "priorities of this engine"),
        (config.long_prefill_token_threshold, "long_prefill_token_threshold"),
        (config.prefill_schedule_interval != 1, "prefill_schedule_interval"),  # with 1 all engine versions decide alike
        (others, ", ".join(others)),
        (not steps.jumps, "step times that hang on each context"),
    )
    return next((why for holds, why in reasons if holds), "")


def covers(config: EngineConfig, steps: StepTime) -> bool:
    """Whether the array engine can stand for this one, given its requests as they come."""
    return not uncovered(config, steps)


class ArrayEngine:
    """An engine that is given its requests as they come. `shared` says of which requests how many leading blocks others also ask for, and
    `numbers` holds the numbers that the engines of a run have given to the names of such blocks. `fast` lets machine code run it.
    """

    terms = NAMES

    def __init__(
        self, config: EngineConfig, steps: StepTime, shared: Mapping[str, int], numbers: dict[Hashable, int], fast: bool = False
    ) -> None:
        self._config, self._steps, self._given = config, steps, given_of(steps, fast)
        self._shared, self._numbers = shared if config.enable_prefix_caching else {}, numbers
        self._most_tokens = min(config.max_model_len, config.kv_capacity_tokens + 1)  # of one request
        self._core: Core
        self._go_on: Callable[..., int]
        self._columns: Core | None = None  # numpy arrays for machine code, which `_core` looks at
        depths = max(self._shared.values(), default=0)
        if fast:
            empty = np.zeros(0, dtype=np.int64)
            self._hold(make_core(config, steps, empty, empty, depths, empty, np.zeros(0), arrays=True))
        else:
            self._core = make_core(config, steps, array("q"), array("q"), depths)
            self._go_on = partial(advance, self._core, self._given)
        self._rows = self._names = 0  # numbers of requests and names so far
        self._requests: dict[int, Request] = {}

    def _hold(self, columns: Core) -> None:
        self._columns, self._core = columns, Core(*(memoryview(column) for column in columns))  # type: ignore[arg-type]  # whose items are Python's numbers
        self._go_on = compiler.resolved(_single_engine(columns), self._given)

    def _append(self, numbers: Sequence[int], names: Sequence[int]) -> None:
        """Numbers of a request, and names of its blocks."""
        if self._columns is None:
            self._core.q.extend(numbers)
            self._core.names.extend(names)
        else:
            grown: dict[str, Any] = {
                name: np.concatenate([column, np.zeros(len(column) + 64 * at.REQUEST + len(more), dtype=np.int64)])
                for name, more, begin in (("q", numbers, self._rows), ("names", names, self._names))
                if begin + len(more) > len(column := getattr(self._columns, name))
            }
            if grown:
                self._hold(self._columns._replace(**grown))
            self._columns.q[self._rows : self._rows + len(numbers)] = numbers
            self._columns.names[self._names : self._names + len(names)] = names
        self._rows += len(numbers)
        self._names += len(names)

    def add(self, request: Request, now: int) -> Wait:
        """Queue a request. Returns when the engine goes on where that is sooner than it said. Raises UsageError when it can never fit."""
        if not 1 <= request.prompt_tokens < request.prompt_tokens + request.output_tokens <= self._most_tokens:
            check_fits(request, self._config)
        s, row = self._core.s, self._rows
        names: Sequence[int] = ()
        numbers = [0] * at.REQUEST
        numbers[at.ARRIVES], numbers[at.PROMPT], numbers[at.OUTPUT] = now, request.prompt_tokens, request.output_tokens
        numbers[at.COMES_WITH], numbers[at.GENERATED] = request.computed_tokens, request.generated_tokens
        numbers[at.PREEMPTIONS] = request.preemptions
        for column in UNKNOWN:
            numbers[column] = -1
        depth = self._shared.get(request.request_id, 0)
        if depth:
            numbers[at.NAMES], numbers[at.DEPTH] = self._names, depth
            names = [self._numbers.setdefault(name, len(self._numbers)) for name in request.prompt_hashes[:depth]]
        self._append(numbers, names)
        self._requests[row] = request
        idle, wake = s[at.PHASE] == at.IDLE, s[at.WAKE]
        arrive(self._core, row, now)
        return None if idle or s[at.WAKE] == wake else (s[at.WAKE], RANKS[s[at.AFTER_ARRIVALS]])

    def cancel(self, request: Request) -> None:
        """Not covered: a stretch is planned for requests that stay."""
        raise NotImplementedError

    def cached_blocks(self, request: Request) -> int:
        """Not covered: within a stretch nobody keeps count of blocks."""
        raise NotImplementedError

    def run(self, log: RequestLog, replica: int, finish: Callable[[Request, int], None], now: int) -> Generator[Wait, int, None]:
        """Yield when to go on (None: when a request has come); be sent the time it then is."""
        s = self._core.s
        s[at.NOW] = now
        while True:
            yield None if s[at.WAKE] == at.NEVER else (s[at.WAKE], RANKS[s[at.AFTER_ARRIVALS]])
            while reason := self._go_on():
                supply(self._core, self._steps, reason)
            if s[at.SENT]:
                self._tell(log, replica, finish)

    def _tell(self, log: RequestLog, replica: int, finish: Callable[[Request, int], None]) -> None:
        """First tokens, then last ones, each in the order of their iteration."""
        s, q, w = self._core.s, self._core.q, self._core.w
        end_s, sent = s[at.NOW] * TICK_S, [seat * at.SEAT for seat in range(s[at.SENT])]
        s[at.SENT] = 0
        sent_rows = [(w[seat + at.SENDING_LAST_AT], w[seat + at.SENDING_AT], w[seat + at.SENDING_PLACE_AT]) for seat in sent]
        for last, row, place in sorted(sent_rows, key=lambda each: each[0]):
            request = self._requests[row]
            if not last:
                if q[row + at.SCHEDULED] >= 0:
                    log.scheduled(request, q[row + at.SCHEDULED])
                log.first_token(request, replica, end_s, place, q[row + at.FRESH])
                continue
            del self._requests[row]
            request.generated_tokens, request.preemptions = request.output_tokens, q[row + at.PREEMPTIONS]
            if q[row + at.CACHED] >= 0:
                request.cached_tokens = q[row + at.CACHED]
            log.last_token(request, end_s, place)
            finish(request, place)


def _single_engine(core: Core) -> on.FleetCore:
    """A fleet of one engine in arrays, to which something else sends requests."""
    columns: dict[str, Any] = {name: np.zeros(1, dtype=np.int64) for name in on.FleetCore._fields}
    columns |= {name: np.zeros(1) for name in ("x", "think_s", "leaves", "given", "transfers", "links", "kv_bytes")} | {
        "c": np.zeros(on.COUNTS, dtype=np.int64)
    }
    columns["c"][[on.ALONE, on.NEXT]] = 1
    for name, column in core._asdict().items():
        columns[name] = column.reshape(1, -1) if name in on.OF_REPLICAS else column
    return on.FleetCore(**columns)
