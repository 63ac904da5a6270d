"""An engine of sim.cluster.replica over rows: the replica's clock drives it, and it tells what it sends."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

import sim.cluster.fleet_state as on
from sim.cluster import compiled as compiler
from sim.cost.step_time import NAMES
from sim.engine.config import EngineConfig
from sim.engine.fits import check_admitted, check_fits
from sim.engine.interface import Request
from sim.engine.loop import Wait
from sim.engine.rows import layout as at
from sim.engine.rows.layout import Core
from sim.engine.rows.loop import advance, arrive, cached_blocks, running_of, used_blocks
from sim.engine.rows.made import bring, fail, given_of, make_core, row_of_request
from sim.engine.rows.vllm import cancel
from sim.engine.sglang_options import SglangOptions
from sim.engine.speculative import Speculation
from sim.engine.step_clock import StepTime
from sim.errors import UsageError
from sim.ticks import COMPLETION, DECISION, MOST_TICKS, TICK_S, TOO_LONG

RANKS = COMPLETION, DECISION


class RequestLog(Protocol):
    """Notified of what happens to requests (sim.results.record.RunLog)."""

    token_ticks: Sequence[int]

    def scheduled(self, request: Request, ticks: int) -> None: ...
    def first_token(self, request: Request, replica: int, end_s: float, place: float, fresh: int) -> None: ...
    def last_token(self, request: Request, end_s: float, place: float) -> None: ...


class RowsEngine:
    """An engine that is given its requests as they come. `shared` says of which requests how many leading blocks others also ask for, and
    `numbers` holds the numbers that the engines of a run have given to the names of such blocks; no request has more than `most_tokens`.
    `fast` lets machine code run it.
    """

    terms = NAMES

    def __init__(
        self,
        config: EngineConfig,
        steps: StepTime,
        shared: Mapping[str, int],
        numbers: dict[Hashable, int],
        fast: bool = False,
        most_tokens: int | None = None,
    ) -> None:
        self._config, self._given, self._fast = config, given_of(steps, fast), fast
        self._shared, self._numbers = shared if config.enable_prefix_caching else {}, numbers
        self._spare = 0
        if config.scheduler == "vllm":
            speculation = Speculation.of(config)
            self._spare = speculation.draft_tokens * (1 + config.overlaps) + speculation.lookahead_tokens
        self._most_tokens = min(config.max_model_len, config.kv_capacity_tokens + 1) - self._spare  # of one request
        most, empty = min(most_tokens or config.max_model_len, config.max_model_len), np.zeros(0, dtype=np.int64)
        self._e: Core = make_core(config, steps, at.records(at.RequestRow, 0), empty, most_tokens=most, arrays=fast)
        self._s = at.row_of(self._e.engines, 0)
        self._names = 0
        self._rows: dict[Request, int] = {}
        self._requests: list[Request] = []
        self._go_on: Callable[[], int]
        if fast:
            self._columns = _single_engine(self._e)
            self._resolve()
        else:
            self._go_on = lambda: advance(self._e, self._s, self._given)

    def _resolve(self) -> None:
        """Machine code for the columns as they are now."""
        self._columns = f = self._columns._replace(core=self._e)
        self._c, self._clock = memoryview(f.c), memoryview(f.clock)  # type: ignore[arg-type]  # arrays here
        resolved = compiler.resolved(on.Pools(f, f), self._given, self._given)
        self._go_on = resolved
        self._s = at.row_of(self._e.engines, 0)

    def _act(self, action: int, row: int) -> int:
        """Let machine code do something to a request."""
        self._c[on.ACTION], self._c[on.ACTED] = action, row
        self._go_on()
        return int(self._c[on.ACTED])

    def _row(self, request: Request) -> int:
        """The request's row, made when it is first seen."""
        found = self._rows.get(request)
        if found is not None:
            return found
        row = row_of_request(request, self._spare > 0)
        depth = self._shared.get(request.request_id, 0)
        names = [self._numbers.setdefault(name, len(self._numbers)) for name in request.prompt_hashes[:depth]]
        row.names, row.seen, row.depth, row.name_rank = self._names, self._names, depth, len(self._requests)
        self._rows[request] = place = len(self._requests)
        self._requests.append(request)
        if self._fast:
            self._append(row, names, place)
        else:
            self._e.requests.append(row)
            self._e.names.extend(names)
        self._names += len(names)
        return place

    def _append(self, row: at.RequestRow, names: list[int], place: int) -> None:
        requests: Any = self._e.requests
        known: Any = self._e.names
        if place >= len(requests) or self._names + len(names) > len(known):
            requests = np.concatenate([requests, at.records(at.RequestRow, len(requests) + 64)])
            known = np.concatenate([known, np.zeros(len(known) + len(names), dtype=np.int64)])
            seen: Any = self._e.seen
            if self._s.host_chunks:
                seen = np.concatenate([seen, np.zeros(len(known) - len(seen), dtype=np.int8)])
            self._e = self._e._replace(requests=requests, names=known, seen=seen)
            self._resolve()
        requests[place] = tuple(getattr(row, name) for name in row.__slots__)
        known[self._names : self._names + len(names)] = names

    def add(self, request: Request, now: int) -> Wait:
        """Queue a request. Returns when the engine goes on where that is sooner than it said. Raises UsageError when it can never fit,
        OverflowError later than machine code can count.
        """
        if self._fast and now > MOST_TICKS:
            raise OverflowError(TOO_LONG)
        if request.cancel_s < math.inf and self._config.scheduler != "vllm":
            raise UsageError(f"request {request.request_id!r} has cancel_s, and the engine cannot drop requests; vllm can")
        if not 1 <= request.prompt_tokens < request.prompt_tokens + request.output_tokens <= self._most_tokens:
            check_fits(request, self._config, self._spare)
        if self._config.scheduler == "sglang":
            check_admitted(request, self._config, SglangOptions.of(self._config))
        place = self._row(request)
        bring(at.row_of(self._e.requests, place), request)
        before = self._c[on.WAKE] if self._fast else self._s.wake
        if self._fast:
            self._clock[on.NOW] = now
            self._act(on.ARRIVE, place)
        else:
            arrive(self._e, self._s, place, now)
        after = self._c[on.WAKE] if self._fast else self._s.wake
        return (now, DECISION) if after < before < at.NEVER else None

    def cancel(self, request: Request) -> None:
        """Drop a request that is inside."""
        place = self._rows[request]
        if self._fast:
            self._act(on.CANCEL, place)
        else:
            cancel(self._e, self._s, place)

    def cached_blocks(self, request: Request) -> int:
        """Leading KV blocks of the request's prompt that the cache holds now."""
        if self._config.scheduler == "llamacpp":
            raise UsageError("this engine does not show its prefix cache to routers and networks; vllm and sglang do")
        place = self._row(request)
        return self._act(on.CACHED, place) if self._fast else cached_blocks(self._e, self._s, place)

    @property
    def takes_kv(self) -> bool:
        """Whether the first blocks of a prompt may come from elsewhere."""
        return self._config.scheduler == "vllm"

    def gauges(self) -> tuple[int, int, int]:
        """Requests that wait and that run, and KV blocks in use."""
        return int(self._s.queued), int(running_of(self._s)), int(used_blocks(self._s))

    def run(self, log: RequestLog, replica: int, finish: Callable[[Request, float], None], now: int) -> Generator[Wait, int, None]:
        """Yield when to go on (None: when a request has come); be sent the time it then is."""
        self._s.token_ticks = log.token_ticks[replica]
        while True:
            wake, rank = (self._c[on.WAKE], self._c[on.RANK]) if self._fast else (self._s.wake, self._s.after_arrivals)
            now = yield None if wake == at.NEVER else (wake, RANKS[rank])
            if self._fast:
                self._clock[on.NOW], self._c[on.ACTION] = now, on.GO_ON
            else:
                self._s.wake = max(now, self._s.wake) if now > self._s.wake else self._s.wake
            if reason := self._go_on():
                fail(self._s, reason)
            if self._c[on.TOLD] if self._fast else self._s.sent:
                self._tell(log, replica, finish, now)

    def _tell(self, log: RequestLog, replica: int, finish: Callable[[Request, float], None], now: int) -> None:
        """First tokens, then last ones, each in the order of their iteration."""
        end_s, count = now * TICK_S, int(self._s.sent)
        self._s.sent = 0
        sends: Any = at.table_of(self._e.sends, at.SendRow, count).tolist()
        for place, token_place, last in sorted(sends, key=lambda each: each[2]):
            request, row = self._requests[place], at.row_of(self._e.requests, place)
            if not last:
                if row.scheduled >= 0:
                    log.scheduled(request, int(row.scheduled))
                log.first_token(request, replica, end_s, token_place, int(row.fresh))
                continue
            del self._rows[request]
            request.generated_tokens, request.preemptions = request.output_tokens, int(row.preemptions)
            if row.cached >= 0:
                request.cached_tokens, request.host_cached_tokens = int(row.cached), int(row.host_cached)
            log.last_token(request, end_s, token_place)
            finish(request, token_place)


def _single_engine(core: Core) -> on.FleetCore:
    """A fleet of one engine, to which something else sends requests."""
    columns: dict[str, Any] = {name: np.zeros(1, dtype=np.int64) for name in on.FleetCore._fields}
    columns |= {name: np.zeros(1) for name in ("x", "arrival_s", "think_s", "leaves", "given", "transfers", "links", "kv_bytes")}
    columns |= {"c": np.zeros(on.COUNTS, dtype=np.int64), "clock": np.zeros(on.CLOCK, dtype=np.int64)}
    columns["c"][[on.ALONE, on.NEXT]] = 1
    columns["c"][[on.WAKE, on.RANK]] = at.NEVER, 1
    return on.FleetCore(**columns | {"core": core})
