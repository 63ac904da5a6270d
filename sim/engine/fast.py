"""The fast engine: vLLM's decisions from aggregates, jumping over decode iterations in which nothing changes.

In steady decode every running request computes one token per iteration, so the batch is known by its size, its summed context, a heap of
finishing times on a clock that counts decode iterations, and how many sequences stand at each position inside a KV block. An iteration
costs its prefills and finishes, not its batch; a stretch without either is one integer polynomial (sim.cost.iteration), which an arrival
cuts short where it is seen. Results equal those of sim.engine.loop with VllmScheduler, to the tick; a property test compares them.

Not covered, and refused by `covers`: priorities, the long-prefill threshold (a decode may then have to wait), a prefill interval.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from heapq import heappop

from sim.cost.iteration import StepTime
from sim.cost.step_time import NAMES
from sim.engine.aggregates import Slot
from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.loop import Wait
from sim.engine.microbatch import Chunk
from sim.engine.stretches import RequestLog, Stretches
from sim.engine.vllm import check_fits
from sim.ticks import COMPLETION, DECISION, Stretch


def covers(config: EngineConfig, steps: StepTime) -> bool:
    """Whether the fast engine can stand for this one."""
    plain_limits = config.scheduler == "vllm" and config.policy == "fcfs" and not config.long_prefill_token_threshold
    plain_limits = plain_limits and config.prefill_schedule_interval == 1  # so that all engine versions decide alike
    return plain_limits and steps.jumps and set(config.options) <= {"async_scheduling"}


class FastEngine(Stretches):
    """An engine of sim.cluster.replica."""

    terms = NAMES

    def add(self, request: Request, now: int) -> Wait:
        """Queue a request. Returns when the engine goes on where that is sooner than it said. Raises UsageError when it can never fit."""
        if not 1 <= request.prompt_tokens < request.prompt_tokens + request.output_tokens <= self._most_tokens:
            check_fits(request, self.config)
        self._queue.append(Slot(request, self._shared.get(request.request_id, 0)))
        if self._planned and self._open and self._cut(now) and not self._sending:
            return self._ends, self._rank
        return None

    def cancel(self, request: Request) -> None:
        """Not covered: a stretch is planned for requests that stay."""
        raise NotImplementedError

    def cached_blocks(self, request: Request) -> int:
        """Not covered: within a stretch nobody keeps count of blocks."""
        raise NotImplementedError

    def run(self, log: RequestLog, replica: int, finish: Callable[[Request, int], None], now: int) -> Generator[Wait, int, None]:
        """Yield when to go on (None: when a request has come); be sent the time it then is."""
        self._log, self._replica, self._finish = log, replica, finish
        pipe, queue, running, overlap = self._pipe, self._queue, self._running, self._overlap
        pipe.idle_until(now)
        while True:
            if queue or running:
                self._decide()
            elif pipe.decides < pipe.ends or self._unsent:
                self._settle()
            else:
                now = yield None
                pipe.idle_until(now)
                continue
            if self._sending:
                self._send((yield self._sends_at, COMPLETION))
            if self._planned:
                now = yield self._ends, self._rank
                self._pass_stretch()
                if overlap:
                    continue
                if self._sending:
                    self._send(now)
            now = yield pipe.decides, DECISION

    def _decide(self) -> None:
        """One decision: an iteration with prefill, a stretch of decode iterations, or none."""
        kv, partial = self._kv, self._partial
        due = self._due[self._clock % self._block_size]
        if due + (self._partial_share()[1] if partial else 0) > kv.free:
            self._starved_iteration()
            return
        if due:
            kv.take(due)
        if partial:
            self._mixed_iteration(None)
            return
        queue = self._queue
        watch = bool(queue) and len(self._running) < self.config.max_num_seqs
        if watch:
            self._fill_shared(self._clock)
            plan = self._plan(queue[0], self.config.max_num_batched_tokens - self._batch)
            if plan is not None:
                self._mixed_iteration(plan)
                return
        if self._batch:
            self._jump(watch)
        else:
            self._release()
            self._settle()

    def _jump(self, watch: bool) -> None:
        """Plan decode iterations up to the next change: a finish, an arrival (see `add`), blocks running out, or, on `watch`, a shared
        block becoming findable. The first iteration has its blocks already.
        """
        finishing, clock, batch, context = self._finishing, self._clock, self._batch, self._context
        while finishing[0][2].admission != finishing[0][1]:
            heappop(finishing)
        stretch = self.steps.stretch(batch, context)
        first, increment, n = stretch
        left = finishing[0][0] - clock
        if left < n:
            n = left
        exposed = 0
        host = self.steps.preparing(batch, False)
        if host:
            head_start = self._pipe.head_start
            if not self._overlap:
                stretch = Stretch(first + host, increment, n)
            elif host > head_start or host > first:
                exposed, n = max(host - head_start, 0), 1  # not like those that follow it
        if self._leaving:
            if self._queue:
                n = 1  # the next decision has what they leave
            self._release()
        open_to_arrivals = not self._queue and len(self._running) < self.config.max_num_seqs
        if watch and self._becoming_shared:
            n = min(n, max(self._becoming_shared[0][0] - clock, 1))
        if n > 1:
            n = self._with_room(n)
        self._plan_stretch(stretch, n, host, exposed, open_to_arrivals)

    def _mixed_iteration(self, plan: tuple[Sequence[int], int, int, int] | None) -> None:
        """One iteration with prefill: the partial prefill first, then admissions, the first of them as planned."""
        config, queue, kv = self.config, self._queue, self._kv
        budget = config.max_num_batched_tokens - self._batch
        shares: list[tuple[Slot, int, int]] = []  # request, tokens, first position
        if self._partial:
            tokens, blocks = self._partial_share()
            self._fill_shared(self._clock)  # decodes come before it
            self._give(self._partial, self._partial_done, tokens, blocks)
            shares.append((self._partial, tokens, self._partial_done))
            budget -= tokens
        while queue and budget > 0 and len(self._running) < config.max_num_seqs:
            slot = queue[0]
            if plan is None:
                plan = self._plan(slot, budget)
                if plan is None:
                    break
            hits, own, start, tokens = plan
            plan = None
            queue.popleft()
            self._admit(slot)
            if slot.depth:
                kv.adopt(slot, hits)
            if own:
                kv.take_back(slot)
            found = len(hits) + own
            if not slot.request.preemptions:
                if not slot.request.computed_tokens:
                    slot.request.cached_tokens = found * self._block_size
                self._log.scheduled(slot.request, self._pipe.decides)
            self._give(slot, start, tokens, -(-(start + tokens) // self._block_size) - found)
            shares.append((slot, tokens, start))
            budget -= tokens
        if self._leaving:
            self._release()
        self._run_shares(shares)

    def _starved_iteration(self) -> None:
        """One iteration in which KV blocks run out: in order of admission, the last admitted leave until the others have theirs. Nobody is
        admitted in it.
        """
        self._fill_shared(self._clock - 1)
        order, kv = list(self._running), self._kv
        leaving = {slot for slot, _ in self._leaving}  # their last token is on the way, and they need no more
        shares: list[tuple[Slot, int, int]] = []
        place = 0
        while place < len(order):
            slot = order[place]
            if slot in leaving:
                needed = 0
            elif slot is self._partial:
                tokens, needed = self._partial_share()
                shares.append((slot, tokens, self._partial_done))
            else:
                needed = int((slot.offset + self._clock) % self._block_size == 0)
            while needed > kv.free and len(order) > place:
                self._preempt(order.pop())
            if len(order) > place:
                kv.take(needed)
            place += 1
        self._release()
        shares = [share for share in shares if share[0] is self._partial]
        if self._batch or shares:
            self._run_shares(shares)
        else:
            self._settle()

    def _run_shares(self, shares: list[tuple[Slot, int, int]]) -> None:
        """Let the time of one iteration pass: all decodes, and these shares of prefill."""
        batch, context, overlap = self._batch, self._context, self._overlap
        total, several = batch, False
        chunks: list[Chunk] = []
        sampling: list[tuple[Slot, int]] = []
        self._partial = None
        for slot, tokens, start in shares:
            end = start + tokens
            total += tokens
            several = several or tokens > 1
            samples = end == slot.prompt + slot.generated
            if tokens == 1 and start >= slot.prompt:
                batch, context = batch + 1, context + start
            else:
                chunks.append((tokens, end, samples))
            if samples:
                sampling.append((slot, end))
            else:
                self._partial, self._partial_done = slot, end
        steps, head_start = self.steps, self._pipe.head_start
        host = steps.occupied(batch + len(chunks), total, several)
        if chunks:
            self._let_pass(host, steps.mixed(batch, context, 0, context, chunks, head_start))
        else:
            self._let_pass(host, steps.shown(batch, False, head_start)[0] + steps.stretch(batch, context).first)
        self._clock += 1
        self._context += self._batch
        decodes = self._batch  # their tokens come first
        if self._finishing and self._finishing[0][0] <= self._clock:
            self._finish_decodes()
        for place, (slot, computed) in enumerate(sampling, start=decodes):
            self._sample(slot, computed, place)
        if not overlap:
            self._send_at_end()
