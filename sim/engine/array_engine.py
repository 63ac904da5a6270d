"""An engine of sim.cluster.replica over the array core (sim.engine.core): the replica's clock drives it, and it tells what it sends.

Not covered, and refused by `covers`: the long-prefill threshold (a decode may then have to wait), a prefill interval, costs that depend on
each sequence's context, and priorities where engines are not given all requests beforehand.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Hashable, Mapping
from typing import Protocol

import sim.engine.core_state as at
from sim.cost.step_time import NAMES
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
    def first_token(self, request: Request, replica: int, end_s: float, place: int) -> None: ...
    def last_token(self, request: Request, end_s: float, place: int) -> None: ...


def covers(config: EngineConfig, steps: StepTime, ranks: bool = False) -> bool:
    """Whether the array engine can stand for this one; `ranks`: it is given priorities and names of all requests beforehand.

    By priority, a request may leave that has its token of the iteration already. Without overlap its last block can then be found, though
    it was never computed: the core does not count such blocks.
    """
    plain_limits = config.scheduler == "vllm" and not config.long_prefill_token_threshold
    if config.policy != "fcfs":
        unfound = config.overlaps or not config.enable_prefix_caching
        plain_limits = plain_limits and ranks and unfound and rules_of(config.engine_version).goes_on
    plain_limits = plain_limits and config.prefill_schedule_interval == 1  # so that all engine versions decide alike
    return plain_limits and steps.jumps and set(config.options) <= {"async_scheduling"}


class ArrayEngine:
    """An engine that is given its requests as they come. `shared` says of which requests how many leading blocks others also ask for, and
    `numbers` holds the numbers that the engines of a run have given to the names of such blocks.
    """

    terms = NAMES

    def __init__(self, config: EngineConfig, steps: StepTime, shared: Mapping[str, int], numbers: dict[Hashable, int]) -> None:
        self._config, self._steps, self._given = config, steps, given_of(steps)
        self._shared, self._numbers = shared if config.enable_prefix_caching else {}, numbers
        self._most_tokens = min(config.max_model_len, config.kv_capacity_tokens + 1)  # of one request
        self._core: Core = make_core(config, steps, array("q"), array("q"), max(self._shared.values(), default=0))
        self._requests: dict[int, Request] = {}

    def add(self, request: Request, now: int) -> Wait:
        """Queue a request. Returns when the engine goes on where that is sooner than it said. Raises UsageError when it can never fit."""
        if not 1 <= request.prompt_tokens < request.prompt_tokens + request.output_tokens <= self._most_tokens:
            check_fits(request, self._config)
        s, q, names = self._core.s, self._core.q, self._core.names
        numbers = [0] * at.REQUEST
        numbers[at.ARRIVES], numbers[at.PROMPT], numbers[at.OUTPUT] = now, request.prompt_tokens, request.output_tokens
        numbers[at.COMES_WITH], numbers[at.GENERATED] = request.computed_tokens, request.generated_tokens
        numbers[at.PREEMPTIONS] = request.preemptions
        for column in UNKNOWN:
            numbers[column] = -1
        depth = self._shared.get(request.request_id, 0)
        if depth:
            numbers[at.NAMES], numbers[at.DEPTH] = len(names), depth
            names.extend(self._numbers.setdefault(name, len(self._numbers)) for name in request.prompt_hashes[:depth])
        row = len(q)
        q.extend(numbers)
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
        core, s = self._core, self._core.s
        s[at.NOW] = now
        while True:
            yield None if s[at.WAKE] == at.NEVER else (s[at.WAKE], RANKS[s[at.AFTER_ARRIVALS]])
            while reason := advance(core, self._given):
                supply(core, self._steps, reason)
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
                log.first_token(request, replica, end_s, place)
                continue
            del self._requests[row]
            request.generated_tokens, request.preemptions = request.output_tokens, q[row + at.PREEMPTIONS]
            if q[row + at.CACHED] >= 0:
                request.cached_tokens = q[row + at.CACHED]
            log.last_token(request, end_s, place)
            finish(request, place)
