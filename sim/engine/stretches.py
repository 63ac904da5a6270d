"""Time of the fast engine: its two clocks, tokens that wait to be sent, and stretches of decode iterations that an arrival may cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Protocol

from sim.cost.iteration import StepTime
from sim.engine.aggregates import Aggregates
from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.overlap import Pipeline
from sim.ticks import COMPLETION, DECISION, TICK_S, Stretch, elapsed, iterations_before

_LAST = itemgetter(2)


class RequestLog(Protocol):
    """Told what happens to requests (sim.results.record.RunLog)."""

    def scheduled(self, request: Request, ticks: int) -> None: ...
    def first_token(self, request: Request, replica: int, end_s: float, place: int) -> None: ...
    def last_token(self, request: Request, end_s: float, place: int) -> None: ...


class Stretches(Aggregates):
    """The aggregates in time. An iteration's tokens are sent at its end, or, where the next one is decided ahead, once that is launched."""

    def __init__(self, config: EngineConfig, steps: StepTime, shared: Mapping[str, int]) -> None:
        super().__init__(config, steps, shared)
        self._pipe = Pipeline()
        self._sending: list[tuple[Request, int, bool]] = []  # tokens that are sent at `_sends_at`
        self._sends_at = 0
        # the end of a stretch: a decision, or without overlap also tokens to send
        self._rank = DECISION if self._overlap else COMPLETION
        self._planned = 0  # decode iterations that are decided and not passed; 0: none
        self._ends = 0  # when the decision after them is made
        self._open = False  # whether an arrival cuts them
        self._origin = 0  # when they begin on the GPU
        self._stretch = Stretch(0, 0, 0)
        self._log: RequestLog
        self._replica = 0
        self._finish: Callable[[Request, int], None]

    def _let_pass(self, host: int, ticks: int) -> None:
        """An iteration of `ticks` that keeps the host for `host` is launched."""
        pipe = self._pipe
        if self._overlap:
            pipe.launched(host, ticks)
            if self._unsent:
                self._sending, self._unsent, self._sends_at = self._unsent, [], pipe.decides
        else:
            pipe.ends = pipe.decides = pipe.ends + ticks

    def _settle(self) -> None:
        """Nothing follows the iteration under way: its tokens are sent, and the next decision made, at its end."""
        pipe = self._pipe
        self._sending, self._unsent, self._sends_at = self._unsent, [], pipe.ends
        pipe.idle_until(pipe.decides)

    def _send_at_end(self) -> None:
        """Without overlap, tokens are sent at the end of their iteration."""
        if self._unsent and not self._overlap:
            self._sending, self._unsent, self._sends_at = self._unsent, [], self._pipe.ends

    def _send(self, now: int) -> None:
        """First tokens, then last ones, each in the order of their iteration."""
        sending, self._sending = self._sending, []
        log, end_s, several = self._log, now * TICK_S, len(sending) > 1
        for request, place, last in sorted(sending, key=_LAST) if several else sending:
            if last:
                log.last_token(request, end_s, place)
                self._finish(request, place)
            else:
                log.first_token(request, self._replica, end_s, place)

    def _plan_stretch(self, stretch: Stretch, n: int, host: int, exposed: int, open_to_arrivals: bool) -> None:
        """Launch the first of `n` decode iterations, `exposed` ticks of host work before it."""
        pipe = self._pipe
        self._origin = pipe.ends
        self._let_pass(host, exposed + stretch.first)
        self._planned, self._stretch, self._open = n, stretch, open_to_arrivals
        if n == 1:
            self._pass_stretch()
        else:
            self._ends = self._after(n)

    def _after(self, n: int) -> int:
        """When the decision after `n` of the planned iterations is made: at the end of the last, or of the one before it."""
        if self._overlap:
            return self._pipe.decides + elapsed(self._stretch, n - 1)
        return self._pipe.decides + elapsed(self._stretch, n) - self._stretch.first

    def _cut(self, now: int) -> bool:
        """Whether a request that arrives now is seen by a decision before the planned one, which then is the planned one."""
        wait = now - self._origin
        n = max((iterations_before(self._stretch, wait) if wait > 0 else 0) + self._overlap, 1)
        if n >= self._planned:
            return False
        self._planned, self._ends = n, self._after(n)
        return True

    def _pass_stretch(self) -> None:
        """The planned decode iterations are over."""
        n, batch, clock = self._planned, self._batch, self._clock
        self._planned = 0
        if n > 1:
            self._kv.take(self._blocks_due(n))
            pipe, stretch = self._pipe, self._stretch
            pipe.decides = self._ends
            pipe.ends = pipe.ends + elapsed(stretch, n) - stretch.first if self._overlap else self._ends
        self._context += n * batch
        self._clock = clock = clock + n
        if self._finishing[0][0] == clock:
            self._finish_decodes()
            self._send_at_end()

    def _blocks_due(self, n: int) -> int:
        """Blocks that the second and later of the next `n` decode iterations take."""
        due, size = self._due, self._block_size
        cycles, rest = divmod(n - 1, size)
        begin = (self._clock + 1) % size
        end = begin + rest
        return cycles * self._batch + sum(due[begin:end]) + (sum(due[: end - size]) if end > size else 0)

    def _with_room(self, most: int) -> int:
        """How many of the next `most` iterations find their blocks, those of the first taken."""
        due, free, size = self._due, self._kv.free, self._block_size
        if self._batch * (1 + (most - 2) // size) <= free:  # at most one block for each, every `size` iterations
            return most
        blocks = 0
        for n in range(1, most):
            blocks += due[(self._clock + n) % size]
            if blocks > free:
                return n
        return most
