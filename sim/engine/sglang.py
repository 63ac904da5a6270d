"""SGLang's scheduler: prefill first. An iteration is either a prefill batch or one token for every running request.

As long as waiting requests fit, prefill batches run and decodes stand still. A prompt longer than the chunk is cut, and its next chunk
opens the next prefill batch. Whether a request fits is a bet: its own tokens in full, and of what running requests may still generate only
a share, `new_token_ratio`, which shrinks with every decode iteration. When the bet is lost, requests with the fewest generated tokens are
retracted to the queue, and the share is raised.

Decisions are those of SGLang 0.5.23, with its overlap mode or without, which tests/engine/test_decisions_equal_sglang.py steps beside this
one. The radix cache (sim.engine.kv.radix) is kept at page granularity (`block_size`): prompts enter it when a chunk of them is computed,
generated tokens when the request finishes. One thing is more lenient: where a chunk finds no room left, the engine fails, and here decodes
go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sim.engine.config import EngineConfig
from sim.engine.interface import Iteration, Outcome, Request
from sim.engine.kv.radix import RadixKv
from sim.engine.sglang_admission import Endings, NewTokenRatio, PrefillBudget, QueueOrder, check_admitted
from sim.engine.sglang_options import SglangOptions
from sim.engine.vllm import check_fits


class SglangScheduler:
    """The `Scheduler` protocol with SGLang's decisions."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.options = SglangOptions.of(config)
        self.kv = RadixKv(config.num_gpu_blocks - 1, config.block_size, prefix_caching=config.enable_prefix_caching)
        self.queue: list[Request] = []
        self.running: list[Request] = []
        self.ratio = NewTokenRatio(self.options)
        self._order = QueueOrder(self.kv, self.options.schedule_policy)
        self._chunked: Request | None = None
        self._prefilled: list[Request] = []  # of the latest prefill batch, until the next decision
        self._under_way: deque[tuple[Iteration, bool, Request | None]] = deque()  # batch, whether prefill, whose prompt goes on
        self._ahead: dict[Request, int] = {}  # tokens that batches under way compute
        self._dropped: set[Request] = set()  # retracted while a batch with them is under way: what it gives them is lost
        self._full = False  # no use looking at the queue before a running request finishes

    def add(self, request: Request) -> None:
        """Queue a request. Raises UsageError when it can never fit."""
        check_fits(request, self.config)
        check_admitted(request, self.config, self.options)
        self.queue.append(request)

    def unfinished(self) -> int:
        """Requests waiting or running."""
        known = {*self.running, *self._prefilled, *self._ahead}
        if self._chunked is not None:
            known.add(self._chunked)
        return len(self.queue) + sum(not _done(request) for request in known)

    def waiting(self) -> int:
        """Requests queued (retracted ones included)."""
        return len(self.queue)

    def kv_blocks_used(self) -> int:
        """KV pages that running requests hold now."""
        return self.kv.used_blocks

    def schedule(self) -> Iteration:
        """A prefill batch when there is one to run, else a decode step."""
        iteration = self._decide()
        if iteration is None:
            self.ratio.reset()
        return iteration or Iteration([])

    def complete(self, iteration: Iteration) -> Outcome:
        """Advance the requests that ran, sample where everything known is computed, free the finished."""
        decided, prefill, unfinished = self._under_way.popleft()
        assert decided is iteration
        sampled: list[Request] = []
        finished: list[Request] = []
        for request, tokens in iteration.scheduled:
            if request in self._dropped:
                self._dropped.remove(request)
                continue
            request.computed_tokens += tokens
            self._ahead[request] -= tokens
            if not self._ahead[request]:
                del self._ahead[request]
            if request is unfinished:
                continue
            request.generated_tokens += 1
            sampled.append(request)
            if prefill or _done(request):
                self.kv.remember(request, request.computed_tokens)
            if _done(request):
                self.kv.free(request)
                finished.append(request)
        return Outcome(sampled, finished)

    def _decide(self) -> Iteration | None:
        self._take_in_prefilled()
        iteration = self._prefill_batch()
        prefill = iteration is not None
        if iteration is None and self.running:
            iteration = self._decode_batch()
        if iteration is not None:
            for request, tokens in iteration.scheduled:
                self._ahead[request] = self._ahead.get(request, 0) + tokens
            self._under_way.append((iteration, prefill, self._chunked if prefill else None))
        return iteration

    def _take_in_prefilled(self) -> None:
        """The latest prefill batch joins those that decode, its unfinished prompt enters the cache, and the finished leave."""
        chunked, joining = self._chunked, [request for request in self._prefilled if not _done(request) and request is not self._chunked]
        if chunked is not None and chunked in self._prefilled:
            self.kv.remember(chunked, self._computed(chunked))
        if len(joining) < len(self._prefilled) or (joining and not self.running):
            self._full = False
        self._prefilled = []
        here = len(self.running)
        self.running = [request for request in self.running if not _done(request)]
        if len(self.running) < here:
            self._full = False
        self.running.extend(joining)

    def _computed(self, request: Request) -> int:
        """Tokens whose KV is in the cache when what is under way has run."""
        return request.computed_tokens + self._ahead.get(request, 0)

    def _prefill_batch(self) -> Iteration | None:
        config = self.config
        if not self.running:
            self._full = False
        if self._chunked is None:
            if self._full or not self.queue:
                return None
            if len(self.running) >= config.max_num_seqs:
                self._full = True
                return None
        self._order.arrange(self.queue)
        ratio = 1.0 if self.options.ignore_eos else self.ratio.value
        committed = sum(self._yet_to_come(request) * ratio for request in self.running)
        chunk = config.max_num_batched_tokens if config.enable_chunked_prefill else None
        budget = PrefillBudget(self.kv, committed, self.options.max_prefill_tokens, chunk)
        shares: list[tuple[Request, int]] = []
        if self._chunked is not None:
            request = self._chunked
            tokens = budget.next_chunk(request.known_tokens - self._computed(request))
            if self.kv.blocks_needed(request, self._computed(request) + tokens) > self.kv.free_blocks:
                return None
            shares.append((request, tokens))
            if self._computed(request) + tokens == request.known_tokens:
                self._chunked = None
            budget.reserve(tokens, 0 if self._chunked else self._at_most(request))
        admitted: list[Request] = []
        endings = Endings(self.running) if self.options.ignore_eos and not config.enable_prefix_caching else None
        for request in self.queue:
            if budget.spent:
                break
            if len(self.running) + len(shares) >= config.max_num_seqs:
                self._full = True
                break
            count, node = self.kv.match(request, short_of=1)
            cached = count * config.block_size
            start = max(cached, min(request.computed_tokens, request.known_tokens - 1))  # transferred KV: the last token is computed anew
            tokens = request.known_tokens - start
            if endings is not None:
                fits = endings.leave_room(request, [each for each, _ in shares], budget)
            else:
                fits = budget.admits(request.known_tokens - cached + self._yet_to_come(request), locks=self.kv.unlocked(node))
            if not fits:
                self._full = bool(self.running or shares)
                break
            share = budget.share(tokens, first=not shares) if endings is None else budget.exact_share(tokens)
            if not share:
                break
            if share < tokens:
                self._chunked = request
            self.kv.hold(request, count, node)
            request.computed_tokens = start
            if not request.preemptions:
                request.cached_tokens = cached
            admitted.append(request)
            shares.append((request, share))
            budget.reserve(share, start - cached + (0 if share < tokens else self._at_most(request)))
            if not budget.has_room:
                self._full = True
                break
        if not shares:
            return None
        del self.queue[: len(admitted)]
        new = sum(tokens for _, tokens in shares)
        # the engine makes room for a page more of every request than it needs
        self.kv.make_room(new + (len(shares) * config.block_size if config.block_size > 1 else 0))
        for request, tokens in shares:
            self.kv.allocate(request, self._computed(request) + tokens)
        self._prefilled = [request for request, _ in shares]
        return Iteration(shares, admitted, [], new)

    def _decode_batch(self) -> Iteration | None:
        finishing = [
            request for request in self.running if request in self._ahead and request.generated_tokens + 1 >= request.output_tokens
        ]
        if finishing:  # the batch under way gives them their last token
            self._full = False
            self.running = [request for request in self.running if request not in finishing]
            if not self.running:
                return None
        retracted: list[Request] = []
        if self._fits(self.running):
            self.ratio.decay()
        elif finishing:
            return None  # they will make room
        else:
            retracted = self._retract()
        self.kv.make_room(len(self.running) * self.config.block_size)
        for request in self.running:
            self.kv.allocate(request, self._computed(request) + 1)
        shared = self.kv.tree.shared * self.config.block_size, self.kv.tree.common * self.config.block_size
        return Iteration([(request, 1) for request in self.running], [], retracted, len(self.running), shared=shared)

    def _retract(self) -> list[Request]:
        """Send requests back to the queue, fewest generated and longest prompt first, until the next step has its pages."""
        order = sorted(self.running, key=lambda request: (-request.generated_tokens, request.prompt_tokens))
        retracted: list[Request] = []
        while len(order) > 1 and not (retracted and self._fits(order)):
            request = order.pop()
            self._send_back(request, retracted)
            self.kv.make_room(len(order) * self.options.retract_decode_steps)
        if self._chunked is not None and not self._fits(order):
            self._send_back(self._chunked, retracted)
            self._chunked = None
        self.running = order
        self.queue.extend(retracted)
        self._full = False
        self.ratio.lost(order)
        return retracted

    def _send_back(self, request: Request, retracted: list[Request]) -> None:
        self.kv.free(request)
        request.computed_tokens = 0
        if self._ahead.pop(request, 0):
            self._dropped.add(request)
        request.preemptions += 1
        retracted.append(request)

    def _fits(self, requests: Sequence[Request]) -> bool:
        due = sum(self.kv.blocks_needed(request, self._computed(request) + 1) for request in requests)
        return self.kv.make_room(due * self.config.block_size)

    def _yet_to_come(self, request: Request) -> int:
        return min(request.output_tokens - request.generated_tokens, self.options.clip_new_tokens)

    def _at_most(self, request: Request) -> int:
        return min(request.output_tokens, self.options.clip_new_tokens)


class OverlapSglangScheduler(SglangScheduler):
    """SGLang's default mode: a batch is decided while the one before it runs, before what it gives is known."""

    def ahead(self) -> Iteration | None:
        """Decide what runs after the batch under way; None when nothing can. Called before its `complete`."""
        return self._decide()


def _done(request: Request) -> bool:
    return request.generated_tokens >= request.output_tokens
