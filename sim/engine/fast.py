"""The fast replica: vLLM's decisions from aggregates, jumping over decode iterations in which nothing changes.

In steady decode every running request computes one token per iteration, so the batch is known by its size, its summed
context, a heap of finishing times on a clock that counts decode iterations, and how many sequences stand at each
position inside a KV block. An iteration costs its prefills and finishes, not its batch; a stretch without either is
one integer polynomial (sim.engine.steptime). Results equal those of sim.engine.plain with VllmScheduler, to the tick;
a property test compares them.

Not covered, and refused by `covers`: priorities and the long-prefill threshold (a decode may then have to wait).
Preemption with prefix caching on raises `NeedsPlain`: what a preempted request finds again depends on the history of
every block. So does any preemption with asynchronous scheduling.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from sim.engine.config import EngineConfig
from sim.engine.counted_kv import CountedKv
from sim.engine.microbatch import Chunk
from sim.engine.overlap import Pipeline
from sim.engine.prefixes import shared_depths
from sim.engine.records import ReplicaRecord
from sim.engine.steptime import TICK_S, StepTime, Stretch, elapsed, iterations_before, to_ticks
from sim.engine.types import Request
from sim.engine.vllm import check_fits


class NeedsPlain(Exception):
    """This workload leaves what the fast path covers; nothing was produced."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An open-loop workload as columns, in order of arrival; `hashes` as Request.prompt_hashes, or empty when
    nothing is shared.
    """

    arrival_s: Sequence[float] | NDArray[np.float64]
    prompt_tokens: Sequence[int] | NDArray[np.int64]
    output_tokens: Sequence[int] | NDArray[np.int64]
    hashes: Sequence[Sequence[Hashable]] = ()


def covers(config: EngineConfig, steps: StepTime) -> bool:
    """Whether the fast path applies to this engine and deployment."""
    plain_limits = config.scheduler == "vllm" and config.policy == "fcfs" and not config.long_prefill_token_threshold
    return plain_limits and steps.jumps and set(config.options) <= {"async_scheduling"}


class FastReplica:
    """One run of one replica. `run` may be called once.

    Requests are numbered by arrival. As long as nobody is preempted they are admitted in that order, so where the
    order of two requests within one iteration matters (what is evicted first, who fills a block first) their numbers
    give it.
    """

    def __init__(self, arrivals: Arrivals, config: EngineConfig, steps: StepTime) -> None:
        self.config = config
        self.steps = steps
        self._arrival = [to_ticks(seconds) for seconds in np.asarray(arrivals.arrival_s, dtype=np.float64).tolist()]
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
        self._clock = 0  # decode iterations so far
        self._offset = [0] * count  # computed tokens of a decode, less the clock
        self._finishing: list[tuple[int, int, int]] = []  # (clock, request, preemptions then)
        self._becoming_shared: list[tuple[int, int]] = []  # (clock, request): when a decode fills a shared block
        # decodes that need a block when the clock, modulo the block size, is the index
        self._due = [0] * config.block_size
        self._generated = [0] * count  # at admission; kept only while waiting
        self._preemptions = [0] * count
        self._cached = [0] * count
        self._started = [np.nan] * count
        self._first = [np.nan] * count
        self._finish = [np.nan] * count
        self._iterations = 0
        # asynchronous scheduling: what finishes in the iteration under way still holds its place and blocks at the
        # next decision, and its tokens are sent when that is launched
        self._overlap = config.overlaps
        self._pipe = Pipeline()
        self._leaving: list[tuple[int, int]] = []  # (request, computed tokens)
        self._unsent: list[tuple[list[float], int]] = []  # (column, request): times of the iteration under way

    @staticmethod
    def _most_tokens(config: EngineConfig) -> int:
        return min(config.max_model_len, config.kv_capacity_tokens + 1)

    def run(self) -> ReplicaRecord:
        """Serve every request. Raises UsageError for one that can never fit, NeedsPlain on a preemption with prefix
        caching on.
        """
        arrival, queue, running, kv, pipe = self._arrival, self._queue, self._running, self._kv, self._pipe
        most, block_size = self.config.max_num_seqs, self.config.block_size
        count, coming = len(arrival), 0
        while True:
            while coming < count and arrival[coming] <= pipe.decides:
                queue.append(coming)
                coming += 1
            if not running and not queue:
                if pipe.decides < pipe.ends:
                    self._settle()  # nothing could be decided: look again at its end
                    continue
                if coming == count:
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
                seen = coming < count and len(running) - len(self._leaving) < most
                self._jump(arrival[coming] - pipe.ends if seen else None)
        self._settle()
        return ReplicaRecord(
            np.array(self._started),
            np.array(self._first),
            np.array(self._finish),
            np.array(self._cached, dtype=np.int64),
            np.array(self._preemptions, dtype=np.int64),
            self._iterations,
        )

    def _jump(self, wait: int | None, *, watch: bool = False) -> None:
        """Decode iterations up to the next change: a finish, an arrival in `wait` ticks (None: none that matters),
        blocks running out, or, on `watch`, a shared block becoming findable. The first iteration has its blocks
        already.
        """
        finishing, due, clock, batch, kv, pipe = self._finishing, self._due, self._clock, self._batch, self._kv, self._pipe
        while finishing[0][2] != self._preemptions[finishing[0][1]]:
            heappop(finishing)
        stretch, host = self.steps.stretch(batch, self._context), self.steps.preparing(batch, False)
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
            if self._queue:
                n = 1  # the next decision has what they leave
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

    def _mixed_iteration(self, plan: tuple[Sequence[int], int] | None) -> None:
        """One iteration with prefill: the partial prefill first, then admissions, the first of them as planned."""
        budget = self.config.max_num_batched_tokens - self._batch
        shares: list[tuple[int, int, int]] = []  # request, tokens, first position
        if self._partial >= 0:
            tokens, blocks = self._partial_share()
            self._give(self._partial, self._partial_done, tokens, blocks)
            shares.append((self._partial, tokens, self._partial_done))
            budget -= tokens
            self._fill_shared(self._clock)
        while self._queue and budget > 0 and len(self._running) < self.config.max_num_seqs:
            request = self._queue[0]
            if plan is None:
                plan = self._plan(request, budget)
                if plan is None:
                    break
            hits, tokens = plan
            plan = None
            self._queue.popleft()
            self._running[request] = None
            cached = len(hits) * self.config.block_size
            if self._depth[request]:
                self._kv.adopt(request, hits)
            if not self._preemptions[request]:
                self._cached[request] = cached
                self._started[request] = self._pipe.decides * TICK_S
            blocks = -(-(cached + tokens) // self.config.block_size) - len(hits)
            self._give(request, cached, tokens, blocks)
            shares.append((request, tokens, cached))
            budget -= tokens
        self._release()
        self._run_shares(shares)

    def _starved_iteration(self) -> None:
        """One iteration in which KV blocks run out: in order of admission, the last admitted leave until the others
        have theirs.
        """
        if self.config.enable_prefix_caching or self._overlap:
            raise NeedsPlain
        order, block_size = list(self._running), self.config.block_size
        shares: list[tuple[int, int, int]] = []
        place = 0
        while place < len(order):
            request = order[place]
            if request == self._partial:
                tokens, needed = self._partial_share()
                shares.append((request, tokens, self._partial_done))
            else:
                needed = int((self._offset[request] + self._clock) % block_size == 0)
            while needed > self._kv.free and len(order) > place:
                self._preempt(order.pop())
            if len(order) > place:
                self._kv.take(needed)
            place += 1
        if order:
            self._run_shares([share for share in shares if share[0] == self._partial])

    def _run_shares(self, shares: list[tuple[int, int, int]]) -> None:
        """Let the time of one iteration pass: all decodes, and these shares of prefill."""
        batch, context = self._batch, self._context
        chunks: list[Chunk] = []
        sampling: list[tuple[int, int]] = []
        self._partial = -1
        for request, tokens, start in shares:
            end = start + tokens
            samples = end == self._prompt[request] + self._generated[request]
            if tokens == 1 and start >= self._prompt[request]:
                batch, context = batch + 1, context + start
            else:
                chunks.append((tokens, end, samples))
            if samples:
                sampling.append((request, end))
            else:
                self._partial, self._partial_done = request, end
        steps, head_start = self.steps, self._pipe.head_start
        tokens = self._batch + sum(tokens for _, tokens, _ in shares)
        host = steps.occupied(batch + len(chunks), tokens, any(tokens > 1 for _, tokens, _ in shares))
        if chunks:
            self._let_pass(host, steps.mixed(batch, context, 0, context, chunks, head_start))
        else:
            self._let_pass(host, steps.shown(batch, False, head_start)[0] + steps.stretch(batch, context).first)
        self._clock += 1
        self._context += self._batch
        self._iterations += 1
        if self._finishing and self._finishing[0][0] <= self._clock:
            self._finish_decodes()
        for request, computed in sampling:
            self._sample(request, computed)
        if not self._overlap:
            self._send(self._pipe.ends)

    def _sample(self, request: int, computed: int) -> None:
        """A prefill is complete: its first (or, resumed, next) token, then decoding, unless that was all."""
        generated = self._generated[request] + 1
        if generated == 1:
            self._unsent.append((self._first, request))
        if generated == self._output[request]:
            self._leave(request, computed)
            return
        self._batch += 1
        self._context += computed
        offset = self._offset[request] = computed - self._clock
        self._due[-offset % self.config.block_size] += 1
        ends = self._clock + self._output[request] - generated
        heappush(self._finishing, (ends, request, self._preemptions[request]))
        self._expect_shared(request)

    def _finish_decodes(self) -> None:
        finishing, clock = self._finishing, self._clock
        while finishing and finishing[0][0] <= clock:
            _, request, preemptions = heappop(finishing)
            if preemptions == self._preemptions[request]:
                offset = self._offset[request]
                self._batch -= 1
                self._context -= offset + clock
                self._due[-offset % self.config.block_size] -= 1
                self._leave(request, offset + clock)

    def _leave(self, request: int, computed: int) -> None:
        self._unsent.append((self._finish, request))
        self._leaving.append((request, computed))
        if not self._overlap:
            self._release()

    def _let_pass(self, host: int, ticks: int, before_last: int = 0) -> None:
        """Iterations of `ticks` in all, all but the last of them `before_last`, that keep the host for `host` each."""
        pipe = self._pipe
        if not self._overlap:
            pipe.ends += ticks
            pipe.decides = pipe.ends
            return
        if self._unsent:
            self._send(pipe.sends(host))
        pipe.launched(host, ticks)
        pipe.decides += before_last

    def _send(self, now: int) -> None:
        """The tokens of the iteration under way reach their clients."""
        for column, request in self._unsent:
            column[request] = now * TICK_S
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
            self._kv.release(request, computed, self.config.enable_prefix_caching)
        self._leaving.clear()

    def _preempt(self, request: int) -> None:
        if request == self._partial:
            computed = self._partial_done
            self._partial = -1
        else:
            offset = self._offset[request]
            computed = offset + self._clock
            self._batch -= 1
            self._context -= computed
            self._due[-offset % self.config.block_size] -= 1
            self._generated[request] = computed + 1 - self._prompt[request]
        del self._running[request]
        self._kv.release(request, computed, False)
        self._preemptions[request] += 1
        self._queue.appendleft(request)

    def _plan(self, request: int, budget: int) -> tuple[Sequence[int], int] | None:
        """(prefix hits, tokens) with which the request can start within `budget` tokens; None when it cannot."""
        config, kv = self.config, self._kv
        known = self._prompt[request] + self._generated[request]
        depth = self._depth[request]
        hits = kv.hits(self._hashes[request], min(depth, (known - 1) // config.block_size)) if depth else []
        tokens = known - len(hits) * config.block_size
        if tokens > budget:
            if not config.enable_chunked_prefill:
                return None
            tokens = budget
        room = kv.free - (self._watermark if self._running else 0)
        reserve = known if config.reserve_full_prompt else len(hits) * config.block_size + tokens
        return None if kv.needed(reserve, hits) > room else (hits, tokens)

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

    def _expect_shared(self, request: int) -> None:
        """Note when the decode will fill the next of its blocks that others may ask for."""
        held = self._kv.shared_held(request)
        end = (held + 1) * self.config.block_size
        # with overlap a decode's token is known one decision later, and a last one only when the request leaves
        if held < self._depth[request] and end < self._prompt[request] + self._output[request] - self._overlap:
            heappush(self._becoming_shared, (end - 1 - self._offset[request] + self._overlap, request))

    def _fill_shared(self, clock: int) -> None:
        """Make findable what decodes have filled by the iteration at `clock`, that one included."""
        expected = self._becoming_shared
        while expected and expected[0][0] <= clock:
            filled, request = heappop(expected)
            if request in self._running:
                full = (self._offset[request] + filled + 1 - self._overlap) // self.config.block_size
                self._kv.remember(request, self._hashes[request], full)
                self._expect_shared(request)
