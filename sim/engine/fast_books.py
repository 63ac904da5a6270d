"""The books of the fast replica: running decodes as aggregates, who finishes when, which blocks become findable, and
when tokens are sent. What is decided from them is in sim.engine.fast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sim.engine.config import EngineConfig
from sim.engine.counted_kv import CountedKv
from sim.engine.overlap import Pipeline
from sim.engine.prefixes import shared_depths
from sim.engine.records import ReplicaRecord
from sim.engine.steptime import StepTime
from sim.engine.ticks import TICK_S, to_ticks
from sim.engine.types import Request
from sim.engine.vllm import check_fits


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A workload as columns, in order of arrival where no feed says when they come; `hashes` as Request.prompt_hashes, or empty when
    nothing is shared.
    """

    arrival_s: Sequence[float] | NDArray[np.float64]
    prompt_tokens: Sequence[int] | NDArray[np.int64]
    output_tokens: Sequence[int] | NDArray[np.int64]
    hashes: Sequence[Sequence[Hashable]] = ()


class Feed(Protocol):
    """Where requests come from when their times depend on what finishes (sim.client_feed)."""

    submit: Callable[[int, int], None]  # set by the replica: a row of the workload, and the tick at which the engine has it

    def next_event(self) -> int | None:
        """Ticks before which nothing is submitted, unless something finishes; None when nothing will be."""

    def advance(self, now: int) -> None:
        """Submit what is ready by `now`."""

    def step(self) -> bool:
        """Go on to the next event; False when there is none."""

    def finished(self, row: int, now: int, place: int) -> None:
        """The last token of a request was sent at `now`, at this place (0 the first) of its iteration."""


class Books:
    """State of one replica. Where the order of two requests within one iteration matters (what is evicted first, who
    fills a block first), the order of their admission gives it, not their number. With a `feed`, requests come when it
    says, and `arrivals.arrival_s` is not looked at.
    """

    def __init__(self, arrivals: Arrivals, config: EngineConfig, steps: StepTime, feed: Feed | None = None) -> None:
        self.config = config
        self.steps = steps
        self._feed = feed
        self._arrival: list[int] = []
        self._rows: Sequence[int] | list[int] = []
        if feed is None:
            self._arrival = [to_ticks(seconds) for seconds in np.asarray(arrivals.arrival_s, dtype=np.float64).tolist()]
            self._rows = range(len(self._arrival))
        else:
            feed.submit = self._submit
        self._prompt: list[int] = np.asarray(arrivals.prompt_tokens).tolist()
        self._output: list[int] = np.asarray(arrivals.output_tokens).tolist()
        sharing = config.enable_prefix_caching and len(arrivals.hashes) > 0
        self._depth = shared_depths(arrivals.hashes) if sharing else [0] * len(self._prompt)
        self._hashes = arrivals.hashes
        for row, (prompt, output) in enumerate(zip(self._prompt, self._output, strict=True)):
            if not 1 <= prompt < prompt + output <= self._most_tokens(config):
                check_fits(Request(f"row {row}", 0.0, prompt, output), config)
        self._kv = CountedKv(config.num_gpu_blocks - 1, config.block_size)
        self._watermark = int(config.watermark * config.num_gpu_blocks)

        count = len(self._prompt)
        self._queue: deque[int] = deque()
        self._running: dict[int, None] = {}  # in order of admission, the partial prefill last
        self._partial = -1  # the one running request whose known tokens are not all computed yet
        self._partial_done = 0
        self._batch = 0  # running decodes
        self._context = 0  # their computed tokens
        self._squares = 0  # of their offsets: how far their contexts differ
        self._clock = 0  # decode iterations so far
        self._offset = [0] * count  # computed tokens of a decode, less the clock
        self._admissions = 0
        self._admission = [0] * count  # number of the latest admission
        self._finishing: list[tuple[int, int, int]] = []  # (clock, admission, request); stale if admitted again or waiting
        # (clock, admission, request): when a decode fills a block that others may ask for
        self._becoming_shared: list[tuple[int, int, int]] = []
        # decodes that need a block when the clock, modulo the block size, is the index
        self._due = [0] * config.block_size
        self._generated = [0] * count  # at the latest admission, or preemption
        self._preemptions = [0] * count
        self._cached = [0] * count
        self._started = [np.nan] * count
        self._first = [np.nan] * count
        self._finish = [np.nan] * count
        self._first_place = [0] * count  # of the first token among those of its iteration
        self._finish_place = [0] * count
        self._iterations = 0
        # asynchronous scheduling: what finishes in the iteration under way still holds its place and blocks at the
        # next decision, and its tokens are sent when that is launched
        self._overlap = config.overlaps
        self._pipe = Pipeline(steps.boost)
        self._leaving: list[tuple[int, int]] = []  # (request, computed tokens)
        self._unsent: list[tuple[list[float], int]] = []  # (column, request): times of the iteration under way

    @staticmethod
    def _most_tokens(config: EngineConfig) -> int:
        return min(config.max_model_len, config.kv_capacity_tokens + 1)

    def _submit(self, row: int, ticks: int) -> None:
        self._arrival.append(ticks)
        assert isinstance(self._rows, list)
        self._rows.append(row)

    def _record(self) -> ReplicaRecord:
        return ReplicaRecord(
            np.array(self._started),
            np.array(self._first),
            np.array(self._finish),
            np.array(self._cached, dtype=np.int64),
            np.array(self._preemptions, dtype=np.int64),
            self._iterations,
            np.array(self._first_place, dtype=np.int64),
            np.array(self._finish_place, dtype=np.int64),
        )

    def _sample(self, request: int, computed: int, place: int) -> None:
        """A prefill is complete: its first (or, resumed, next) token, at this place of the iteration's, then decoding,
        unless that was all.
        """
        generated = self._generated[request] + 1
        if generated == 1:
            self._first_place[request] = place
            self._unsent.append((self._first, request))
        if generated == self._output[request]:
            self._leave(request, computed, place)
            return
        self._batch += 1
        self._context += computed
        offset = self._offset[request] = computed - self._clock
        self._squares += offset * offset
        self._due[-offset % self.config.block_size] += 1
        ends = self._clock + self._output[request] - generated
        heappush(self._finishing, (ends, self._admission[request], request))
        self._expect_shared(request)

    def _finish_decodes(self) -> None:
        finishing, clock = self._finishing, self._clock
        gone = 0  # those of this iteration that have given up their place already came before
        while finishing and finishing[0][0] <= clock:
            _, admission, request = heappop(finishing)
            if admission == self._admission[request]:
                offset = self._offset[request]
                self._batch -= 1
                self._context -= offset + clock
                self._squares -= offset * offset
                self._due[-offset % self.config.block_size] -= 1
                place = next(place for place, each in enumerate(self._running) if each == request)
                self._leave(request, offset + clock, place + gone)
                gone += not self._overlap

    def _leave(self, request: int, computed: int, place: int) -> None:
        self._finish_place[request] = place
        self._unsent.append((self._finish, request))
        self._leaving.append((request, computed))
        if not self._overlap:
            self._release()

    def _let_pass(self, host: int, ticks: int, before_last: int = 0, products: int = 0, rested: bool = False) -> None:
        """Iterations of `ticks` in all, all but the last of them `before_last`, that keep the host for `host` each; or one of so many
        `products`, on a GPU that has rested or has not.
        """
        pipe = self._pipe
        if not self._overlap:
            pipe.ends += ticks
            pipe.decides = pipe.ends
            return
        if self._unsent:
            self._send(pipe.sends(host))
        pipe.launched(host, ticks, products, rested)
        pipe.decides += before_last

    def _send(self, now: int) -> None:
        """The tokens of the iteration under way reach their clients."""
        for column, request in self._unsent:
            column[request] = now * TICK_S
        if self._feed is not None:
            for column, request in self._unsent:
                if column is self._finish:
                    self._feed.finished(request, now, self._finish_place[request])
        self._unsent.clear()

    def _settle(self) -> None:
        """Nothing follows the iteration under way: its tokens are sent, and the next decision made, at its end."""
        self._send(self._pipe.ends)
        self._pipe.idle_until(self._pipe.ends)

    def _release(self) -> None:
        """Take place and blocks from those who have finished."""
        if not self._leaving:
            return
        self._fill_shared(self._clock - 1 + self._overlap)
        for request, computed in self._leaving:
            if self._depth[request]:
                full = min(computed // self.config.block_size, self._depth[request])
                self._kv.remember(request, self._hashes[request], full)
            del self._running[request]
            self._admission[request] = -1
            self._kv.release(request, computed, computed // self.config.block_size if self.config.enable_prefix_caching else 0)
        self._leaving.clear()

    def _admit(self, request: int) -> None:
        self._running[request] = None
        self._admissions += 1
        self._admission[request] = self._admissions

    def _preempt(self, request: int) -> None:
        """Take place and blocks from a running request. What the iteration under way computes for it is sent, but the
        token that a decode samples there was not known when its blocks were last made findable.
        """
        block_size, back = self.config.block_size, True
        if request == self._partial:
            computed = findable = self._partial_done
            self._partial = -1
        else:
            began = self._prompt[request] + self._generated[request]  # its tokens when it started to decode
            computed = next((tokens for leaves, tokens in self._leaving if leaves == request), 0)
            back = not computed
            if computed:
                self._leaving = [each for each in self._leaving if each[0] != request]
            else:
                offset = self._offset[request]
                computed = offset + self._clock
                self._batch -= 1
                self._context -= computed
                self._squares -= offset * offset
                self._due[-offset % block_size] -= 1
                self._generated[request] = computed + 1 - self._prompt[request]
            findable = max(computed - self._overlap, began)
        del self._running[request]
        self._admission[request] = -1
        full = findable // block_size if self.config.enable_prefix_caching else 0
        if self._depth[request]:
            self._kv.remember(request, self._hashes[request], min(full, self._depth[request]))
        self._kv.release(request, computed, full, comes_back=back)
        self._preemptions[request] += 1
        if back:
            self._queue.appendleft(request)

    def _expect_shared(self, request: int) -> None:
        """Note when the decode will fill the next of its blocks that others may ask for."""
        held = self._kv.shared_held(request)
        end = (held + 1) * self.config.block_size
        # with overlap a decode's token is known one decision later, and a last one only when the request leaves
        if held < self._depth[request] and end < self._prompt[request] + self._output[request] - self._overlap:
            filled = end - 1 - self._offset[request] + self._overlap
            heappush(self._becoming_shared, (filled, self._admission[request], request))

    def _fill_shared(self, clock: int) -> None:
        """Make findable what decodes have filled by the iteration at `clock`, that one included."""
        expected = self._becoming_shared
        while expected and expected[0][0] <= clock:
            filled, admission, request = heappop(expected)
            if admission == self._admission[request]:
                full = (self._offset[request] + filled + 1 - self._overlap) // self.config.block_size
                self._kv.remember(request, self._hashes[request], full)
                self._expect_shared(request)
