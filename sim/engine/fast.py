"""The fast replica: vLLM's decisions from aggregates, jumping over decode iterations in which nothing changes.

In steady decode every running request computes one token per iteration, so the batch is known by its size, its summed
context, a heap of finishing times on a clock that counts decode iterations, and how many sequences stand at each
position inside a KV block. An iteration costs its prefills and finishes, not its batch; a stretch without either is
one integer polynomial (sim.engine.steptime). Results equal those of sim.engine.plain with VllmScheduler, to the tick;
a property test compares them.

Not covered, and refused by `covers`: priorities and the long-prefill threshold (a decode may then have to wait).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop

from sim.engine.config import EngineConfig
from sim.engine.fast_books import Books
from sim.engine.microbatch import Chunk
from sim.engine.records import ReplicaRecord
from sim.engine.steptime import StepTime
from sim.engine.ticks import TICK_S, Stretch, elapsed, iterations_before


def covers(config: EngineConfig, steps: StepTime) -> bool:
    """Whether the fast path applies to this engine and deployment."""
    plain_limits = config.scheduler == "vllm" and config.policy == "fcfs" and not config.long_prefill_token_threshold
    return plain_limits and steps.jumps and set(config.options) <= {"async_scheduling"}


class FastReplica(Books):
    """One run of one replica. `run` may be called once."""

    def run(self) -> ReplicaRecord:
        """Serve every request."""
        arrival, queue, running, kv, pipe = self._arrival, self._queue, self._running, self._kv, self._pipe
        most, block_size = self.config.max_num_seqs, self.config.block_size
        rows, feed = self._rows, self._feed
        count, coming = len(arrival), 0
        while True:
            if feed is not None:
                feed.advance(pipe.decides)
                count = len(arrival)
            while coming < count and arrival[coming] <= pipe.decides:
                queue.append(rows[coming])
                coming += 1
            if not running and not queue:
                if pipe.decides < pipe.ends or (feed is not None and self._unsent):
                    self._settle()  # nothing could be decided: look again at its end
                    continue
                if coming == count:
                    if feed is not None and feed.step():
                        continue
                    break
                pipe.idle_until(arrival[coming])
                continue
            due = self._due[self._clock % block_size]
            if due + (self._partial_share()[1] if self._partial >= 0 else 0) > kv.free:
                self._starved_iteration()
                continue
            if due:
                kv.take(due)
            if self._partial >= 0:
                self._mixed_iteration(None)
                continue
            plan = None
            if queue and len(running) < most:
                self._fill_shared(self._clock)
                plan = self._plan(queue[0], self.config.max_num_batched_tokens - self._batch)
            if plan is not None:
                self._mixed_iteration(plan)
            elif not self._batch:
                self._release()
                self._settle()
            elif queue:
                self._jump(None, watch=len(running) < most)
            else:
                following = arrival[coming] if coming < count else feed.next_event() if feed is not None else None
                seen = following is not None and len(running) - len(self._leaving) < most
                self._jump(following - pipe.ends if seen and following is not None else None)
        self._settle()
        return self._record()

    def _jump(self, wait: int | None, *, watch: bool = False) -> None:
        """Decode iterations up to the next change: a finish, an arrival in `wait` ticks (None: none that matters),
        blocks running out, or, on `watch`, a shared block becoming findable. The first iteration has its blocks
        already.
        """
        finishing, due, clock, batch, kv, pipe = self._finishing, self._due, self._clock, self._batch, self._kv, self._pipe
        while self._admission[finishing[0][2]] != finishing[0][1]:
            heappop(finishing)
        offsets = self._context - batch * clock
        spread = batch * self._squares - offsets * offsets
        stretch, host = self.steps.stretch(batch, self._context, spread), self.steps.preparing(batch, False)
        exposed = 0
        if not self._overlap:
            stretch = Stretch(stretch.first + host, stretch.increment, stretch.most)
        elif host > pipe.head_start or host > stretch.first:
            exposed = max(host - pipe.head_start, 0)
            wait = 0  # not like those that follow it
        n = min(stretch.most, finishing[0][0] - clock)
        if wait is not None:
            n = min(n, (iterations_before(stretch, wait) if wait > 0 else 0) + self._overlap)
        if self._leaving:
            if self._queue or self._feed is not None:
                n = 1  # the next decision has what they leave, and who follows them may come before it
            self._release()
        if watch and self._becoming_shared:
            n = min(n, max(self._becoming_shared[0][0] - clock, 1))
        if n > 1:
            cycles, rest = divmod(n - 1, len(due))
            begin = (clock + 1) % len(due)
            end = begin + rest
            blocks = cycles * batch + sum(due[begin:end]) + sum(due[: max(end - len(due), 0)])
            if blocks > kv.free:
                n, blocks = self._iterations_with_room(n)
            kv.take(blocks)
        self._let_pass(host, exposed + elapsed(stretch, n), elapsed(stretch, n - 1))
        self._context += n * batch
        self._clock = clock + n
        self._iterations += n
        if finishing[0][0] == self._clock:
            self._finish_decodes()
        if not self._overlap:
            self._send(pipe.ends)

    def _iterations_with_room(self, most: int) -> tuple[int, int]:
        """How many of the next `most` iterations find their blocks, and how many blocks the second and later ones
        take.
        """
        due, blocks = self._due, 0
        for n in range(1, most):
            more = blocks + due[(self._clock + n) % len(due)]
            if more > self._kv.free:
                return n, blocks
            blocks = more
        return most, blocks

    def _mixed_iteration(self, plan: tuple[Sequence[int], int, int] | None) -> None:
        """One iteration with prefill: the partial prefill first, then admissions, the first of them as planned."""
        budget = self.config.max_num_batched_tokens - self._batch
        shares: list[tuple[int, int, int]] = []  # request, tokens, first position
        if self._partial >= 0:
            tokens, blocks = self._partial_share()
            self._fill_shared(self._clock)  # decodes come before it
            self._give(self._partial, self._partial_done, tokens, blocks)
            shares.append((self._partial, tokens, self._partial_done))
            budget -= tokens
        while self._queue and budget > 0 and len(self._running) < self.config.max_num_seqs:
            request = self._queue[0]
            if plan is None:
                plan = self._plan(request, budget)
                if plan is None:
                    break
            hits, own, tokens = plan
            plan = None
            self._queue.popleft()
            self._admit(request)
            cached = (len(hits) + own) * self.config.block_size
            if self._depth[request]:
                self._kv.adopt(request, hits)
            if own:
                self._kv.take_back(request)
            if not self._preemptions[request]:
                self._cached[request] = cached
                self._started[request] = self._pipe.decides * TICK_S
            blocks = -(-(cached + tokens) // self.config.block_size) - len(hits) - own
            self._give(request, cached, tokens, blocks)
            shares.append((request, tokens, cached))
            budget -= tokens
        self._release()
        self._run_shares(shares)

    def _starved_iteration(self) -> None:
        """One iteration in which KV blocks run out: in order of admission, the last admitted leave until the others
        have theirs. Nobody is admitted in it.
        """
        self._fill_shared(self._clock - 1)
        order, block_size = list(self._running), self.config.block_size
        leaving = {request for request, _ in self._leaving}  # their last token is on the way, and they need no more
        shares: list[tuple[int, int, int]] = []
        place = 0
        while place < len(order):
            request = order[place]
            if request in leaving:
                needed = 0
            elif request == self._partial:
                tokens, needed = self._partial_share()
                shares.append((request, tokens, self._partial_done))
            else:
                needed = int((self._offset[request] + self._clock) % block_size == 0)
            while needed > self._kv.free and len(order) > place:
                self._preempt(order.pop())
            if len(order) > place:
                self._kv.take(needed)
            place += 1
        self._release()
        shares = [share for share in shares if share[0] == self._partial]
        if self._batch or shares:
            self._run_shares(shares)
        else:
            self._settle()

    def _run_shares(self, shares: list[tuple[int, int, int]]) -> None:
        """Let the time of one iteration pass: all decodes, and these shares of prefill."""
        batch, context, squares = self._batch, self._context, self._squares
        total, several = batch, False
        chunks: list[Chunk] = []
        sampling: list[tuple[int, int]] = []
        self._partial = -1
        for request, tokens, start in shares:
            end = start + tokens
            total += tokens
            several = several or tokens > 1
            samples = end == self._prompt[request] + self._generated[request]
            if tokens == 1 and start >= self._prompt[request]:
                batch, context, squares = batch + 1, context + start, squares + (start - self._clock) ** 2
            else:
                chunks.append((tokens, end, samples))
            if samples:
                sampling.append((request, end))
            else:
                self._partial, self._partial_done = request, end
        steps, head_start = self.steps, self._pipe.head_start
        host = steps.occupied(batch + len(chunks), total, several)
        spread = batch * squares - (context - batch * self._clock) ** 2
        if chunks:
            products = steps.products(batch, chunks)
            rested = self._overlap and self._pipe.rested(products)
            self._let_pass(host, steps.mixed(batch, context, 0, context, chunks, head_start, spread, rested), 0, products, rested)
        else:
            self._let_pass(host, steps.shown(batch, False, head_start)[0] + steps.stretch(batch, context, spread).first)
        self._clock += 1
        self._context += self._batch
        self._iterations += 1
        decodes = self._batch  # their tokens come first
        if self._finishing and self._finishing[0][0] <= self._clock:
            self._finish_decodes()
        for place, (request, computed) in enumerate(sampling, start=decodes):
            self._sample(request, computed, place)
        if not self._overlap:
            self._send(self._pipe.ends)

    def _plan(self, request: int, budget: int) -> tuple[Sequence[int], int, int] | None:
        """(shared blocks found, blocks of its own found again, tokens) with which the request can start within `budget`
        tokens; None when it cannot.
        """
        config, kv = self.config, self._kv
        known = self._prompt[request] + self._generated[request]
        depth = self._depth[request]
        hits = kv.hits(self._hashes[request], min(depth, (known - 1) // config.block_size)) if depth else []
        own = kv.own(request) if self._preemptions[request] else 0
        found = len(hits) + own
        tokens = known - found * config.block_size
        if tokens > budget:
            if not config.enable_chunked_prefill:
                return None
            tokens = budget
        room = kv.free - (self._watermark if self._running else 0)
        reserve = known if config.reserve_full_prompt else found * config.block_size + tokens
        return None if kv.needed(reserve, hits) > room else (hits, own, tokens)

    def _give(self, request: int, start: int, tokens: int, blocks: int) -> None:
        """Blocks for a share of prefill, and its full blocks made findable."""
        self._kv.take(blocks)
        if self._depth[request]:
            full = min((start + tokens) // self.config.block_size, self._depth[request])
            self._kv.remember(request, self._hashes[request], full)

    def _partial_share(self) -> tuple[int, int]:
        """(tokens, new blocks) of the partial prefill in this iteration; zeros when there is none."""
        request, done = self._partial, self._partial_done
        if request < 0:
            return 0, 0
        left = self._prompt[request] + self._generated[request] - done
        tokens = min(left, self.config.max_num_batched_tokens - self._batch)
        block_size = self.config.block_size
        return tokens, -(-(done + tokens) // block_size) + (-done // block_size)
