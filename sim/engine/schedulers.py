"""The engine in rows behind the `Scheduler` protocol: to be stepped one decision at a time, and to derive a scheduler of one's own from.

Decisions and KV are those of sim.engine.rows, as plain Python. Time and price stay with whoever steps it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from sim.engine.config import EngineConfig
from sim.engine.fits import check_admitted, check_fits
from sim.engine.interface import Iteration, Outcome, Request
from sim.engine.rows import layout as at
from sim.engine.rows.loop import cached_blocks, collect_by_kind, decide_by_kind, running_of, used_blocks
from sim.engine.rows.made import bring, make_core, row_of_request
from sim.engine.rows.offload import next_transfer, send_transfers
from sim.engine.rows.vllm import cancel
from sim.engine.rows.waiting import add
from sim.engine.sglang_options import SglangOptions
from sim.engine.speculative import Speculation
from sim.errors import UsageError


class _Stepped:
    """Decisions one by one, of an `engine`, whatever a class derived from it is called. Requests carry their progress as of the last
    iteration that is complete.
    """

    engine = "vllm"

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        nothing = np.zeros(0, dtype=np.int64)
        self._e = make_core(
            replace(config, scheduler=self.engine), None, at.records(at.RequestRow, 0), nothing, most_tokens=config.max_model_len, keep=True
        )
        self._s: at.EngineRow = self._e.engines[0]
        self._requests: list[Request] = []
        self._rows: dict[Request, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._decided: deque[tuple[Iteration, int]] = deque()  # and which of the two rows of iterations it is
        self._computed = 0  # when the latest iteration is
        self.idle = False  # it waits for a copy alone
        self._evicted: list[Request] = []  # by decisions that then had nothing to run

    def add(self, request: Request) -> None:
        """Queue a request. Raises UsageError when it can never fit."""
        place = self._row(request)
        bring(self._e.requests[place], request)
        add(self._e, self._s, place)

    def unfinished(self) -> int:
        """Requests waiting or running."""
        return self._s.queued + running_of(self._s)

    def waiting(self) -> int:
        """Requests queued and not running (preempted ones included)."""
        return self._s.queued

    def kv_blocks_used(self) -> int:
        """KV blocks that running requests hold now."""
        return used_blocks(self._s)

    @property
    def free_blocks(self) -> int:
        """KV blocks that can be handed out now, evictable contents included."""
        return self.config.num_gpu_blocks - 1 - self.kv_blocks_used()

    @property
    def running(self) -> list[Request]:
        """Requests that decode or compute their prompt."""
        first = self._s.first_running
        return [self._requests[r] for r in self._e.running[first : first + self._s.running]]

    @property
    def shared(self) -> tuple[int, int]:
        """Tokens of KV counted again by further running requests, and those that several hold."""
        return self._s.shared * self._s.block, self._s.common * self._s.block

    def cached_blocks(self, request: Request) -> int:
        """Leading KV blocks of the request's prompt that are in HBM now."""
        return cached_blocks(self._e, self._s, self._row(request))

    def schedule(self) -> Iteration:
        """The iteration to run now: the one that was decided ahead, or one decided now."""
        if self._decided:
            return self._decided[0][0]
        found = self._decide()
        return Iteration([], preempted=self._take_evicted()) if found is None else found

    def complete(self, iteration: Iteration) -> Outcome:
        """The iteration ran: advance its requests, sample where everything known is computed, free the finished."""
        if not self._decided or self._decided[0][0] is not iteration:
            return Outcome([], [])
        e, s = self._e, self._s
        _, i = self._decided.popleft()
        before = [request.generated_tokens for request, _ in iteration.scheduled]
        s.sent, s.entries, s.polled = 0, 0, e.iterations[s.first_iteration + i].started
        collect_by_kind(e, s, i)
        s.number += 1
        s.under_way = self._decided[0][1] if self._decided else at.NOBODY
        outcome, under_way = Outcome([], []), dict(self._decided[0][0].scheduled) if self._decided else {}
        for (request, _), had in zip(iteration.scheduled, before, strict=True):
            place = self._rows.get(request)
            if place is None:
                continue
            row = e.requests[place]
            request.generated_tokens, request.computed_tokens = row.generated, row.computed - row.under_way
            if request.cancelled or row.generated == had:
                continue
            outcome.sampled.append(request)
            outcome.drafts_kept += row.generated - had - 1
            if row.generated >= row.output:
                outcome.finished.append(request)
                request.computed_tokens -= under_way.get(request, 0)
                del self._rows[request]
        return outcome

    def _decide(self) -> Iteration | None:
        """Decide what runs next; None where nothing does."""
        e, s = self._e, self._s
        i = 1 if s.under_way == 0 else 0
        s.entries = 0
        decide_by_kind(e, s, i)
        it = e.iterations[s.first_iteration + i]
        for place in range(s.first_entry, s.first_entry + s.entries):
            request = self._requests[e.entries[place].request]
            request.computed_tokens = 0
            request.preemptions += 1
            self._evicted.append(request)
        if not it.shares:
            if s.host_chunks:
                send_transfers(e, s, s.now, max(s.now, self._computed), s.decisions + 1)
            return None
        begin = s.first_share + i * (s.seqs + 1)
        shares = [e.shares[place] for place in range(begin, begin + it.shares)]
        scheduled = [(self._requests[share.request], int(share.tokens)) for share in shares]
        admitted = self._admitted(scheduled, it.admitted)
        for request in admitted:
            row = e.requests[self._rows[request]]
            request.computed_tokens = row.computed - row.under_way
            if row.cached >= 0:
                request.cached_tokens, request.host_cached_tokens = row.cached, row.host_cached
        shared = it.shared * s.block, it.common * s.block
        places = [e.requests[share.request].seat for share in shares]
        found = Iteration(scheduled, admitted, self._take_evicted(), int(it.tokens), shared, places, int(it.lacks))
        self._decided.append((found, i))
        if s.under_way == at.NOBODY:
            s.under_way = i
        return found

    def _admitted(self, scheduled: list[tuple[Request, int]], count: int) -> list[Request]:
        """The requests that a decision has just let in, so many: the last ones of its shares."""
        return [request for request, _ in scheduled[len(scheduled) - count :]]

    def _take_evicted(self) -> list[Request]:
        evicted, self._evicted = self._evicted, []
        return evicted

    def _row(self, request: Request) -> int:
        """The request's row, made when it is first seen."""
        found = self._rows.get(request)
        if found is not None:
            return found
        e: Any = self._e
        row = row_of_request(request, self._s.drafting > 0)
        place = len(self._requests)
        if self._s.caching:
            row.names, row.seen, row.depth = len(e.names), len(e.names), len(request.prompt_hashes)
            e.names.extend(self._numbers.setdefault(name, len(self._numbers)) for name in request.prompt_hashes)
        self._rows[request] = place
        self._requests.append(request)
        e.requests.append(row)
        if self._s.ranked:
            for rank, each in enumerate(sorted(self._rows, key=lambda each: each.request_id)):
                e.requests[self._rows[each]].name_rank = rank
        return place


class VllmScheduler(_Stepped):
    """vLLM's scheduler, deciding an iteration when the one before it is complete."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._s.overlap = 0
        speculation = Speculation.of(config)
        self._spare = speculation.draft_tokens + speculation.lookahead_tokens

    def add(self, request: Request) -> None:
        """Queue a request. Raises UsageError when it can never fit."""
        check_fits(request, self.config, self._spare)
        super().add(request)

    def at(self, now: int) -> None:
        """It is `now` (ticks): the next decision follows."""
        self._s.now, self.idle = now, False

    def copies_take(self, write: int, load: int, latency: int) -> None:
        """Ticks of copies to and from host RAM: of a block written, of one loaded, and of each load beside these."""
        self._s.write_ticks, self._s.load_ticks, self._s.load_latency = self._s.chunk * write, load, latency

    def launched(self, now: int, computed: int, ends: int) -> None:
        """The latest iteration decided begins now, the one before it is `computed` at those ticks, and this one `ends` then."""
        self._computed = ends
        self._e.iterations[self._s.first_iteration + self._decided[0][1]].started = now
        if self._s.host_chunks:
            send_transfers(self._e, self._s, now, computed, self._s.decisions)

    def wakes(self) -> int | None:
        """When a transfer is over for which somebody waits; None where nobody does."""
        found = next_transfer(self._e, self._s) if self._s.host_chunks and self._s.queued else at.NEVER
        if found == at.NEVER:
            return None
        self._s.polled = at.NEVER
        return found

    def cancel(self, request: Request) -> None:
        """Forget a request whose client has given up, and free its blocks: an iteration under way still writes them, before any other."""
        cancel(self._e, self._s, self._rows[request])

    def blocks_held(self, request: Request) -> int:
        """KV blocks that the request holds."""
        return self._e.requests[self._rows[request]].held


class AsyncVllmScheduler(VllmScheduler):
    """vLLM's asynchronous scheduling: an iteration is decided while the one before it runs.

    A request that arrives during an iteration is not in the next one, which is decided already, but in the one after; and a finished
    request keeps its place and its KV blocks through one more decision.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._s.overlap = 1
        self._spare += Speculation.of(config).draft_tokens

    def ahead(self) -> Iteration | None:
        """Decide, once, what runs after the iteration under way; None when nothing can. Called before its `complete`."""
        return self._decide()


class SglangScheduler(_Stepped):
    """SGLang's scheduler, deciding a batch when the one before it is complete."""

    engine = "sglang"

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._options = SglangOptions.of(config)

    def add(self, request: Request) -> None:
        """Queue a request. Raises UsageError when it can never fit, or is never admitted."""
        check_fits(request, self.config)
        check_admitted(request, self.config, self._options)
        super().add(request)

    @property
    def new_token_ratio(self) -> float:
        """Share of what running requests may still generate that admission reserves."""
        return self._s.ratio

    @property
    def unused_pages(self) -> int:
        """Pages that hold nothing."""
        return self._s.unused


class OverlapSglangScheduler(SglangScheduler):
    """SGLang's default mode: a batch is decided while the one before it runs, before what it gives is known."""

    def ahead(self) -> Iteration | None:
        """Decide what runs after the batch under way; None when nothing can. Called before its `complete`."""
        return self._decide()


class LlamaCppScheduler(_Stepped):
    """The scheduler of llama.cpp's server."""

    engine = "llamacpp"

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._seated: set[Request] = set()

    def add(self, request: Request) -> None:
        """Queue a request. Raises UsageError when it does not fit a slot."""
        check_fits(request, self.config)
        super().add(request)

    @property
    def slots(self) -> list[Request | None]:
        """The request in each slot."""
        first = self._s.first_running
        return [None if r == at.NOBODY else self._requests[r] for r in self._e.running[first : first + self._s.seqs]]

    def cached_blocks(self, request: Request) -> int:
        """Raises UsageError: what a slot would have depends on which one is taken."""
        raise UsageError("this engine does not show its prefix cache to routers and networks; vllm and sglang do")

    def _admitted(self, scheduled: list[tuple[Request, int]], count: int) -> list[Request]:
        """Those that took a slot, whether they got tokens or not."""
        before, self._seated = self._seated, {request for request in self.slots if request is not None}
        return sorted(self._seated - before, key=self._rows.__getitem__)
