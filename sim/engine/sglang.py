"""SGLang's scheduler: prefill first. An iteration is either a prefill batch or one token for every running request.

As long as waiting requests fit, prefill batches run and decodes stand still. A prompt longer than the chunk is cut,
and its next chunk opens the next prefill batch. Whether a request fits is a bet: its own tokens in full, and of what
running requests may still generate only a share, `new_token_ratio`, which shrinks with every decode iteration. When
the bet is lost, requests with the fewest generated tokens are retracted to the queue, and the share is raised.

Decisions are those of SGLang 0.5.23 without its overlap mode, which tests/engine/test_decisions_equal_sglang.py steps beside
this one. The radix cache (sim.engine.radix) is kept at page granularity (`block_size`): prompts enter it when a chunk of them is
computed, generated tokens when the request finishes. One thing is more lenient: where a chunk finds no room left, the engine fails, and
here decodes go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from sim.engine.config import EngineConfig
from sim.engine.radix import RadixKv
from sim.engine.sglang_admission import Endings, PrefillBudget, QueueOrder
from sim.engine.types import Iteration, Outcome, Request
from sim.engine.vllm import check_fits
from sim.errors import UsageError

SCHEDULE_POLICIES = ("fcfs", "lpm")


@dataclass(frozen=True, slots=True)
class SglangOptions:
    """Settings of `EngineConfig.options`. chunked_prefill_size is max_num_batched_tokens, max_running_requests is
    max_num_seqs.

    `schedule_policy` lpm takes the longest cached prefix first. The new-token ratio starts at `init_new_token_ratio`,
    falls to `min_new_token_ratio` over `ratio_decay_steps` decode iterations, and counts at most `clip_new_tokens`
    tokens of a request.
    """

    max_prefill_tokens: int = 16384
    schedule_policy: str = "fcfs"
    init_new_token_ratio: float = 0.7
    min_new_token_ratio: float = 0.098
    ratio_decay_steps: int = 600
    clip_new_tokens: int = 4096
    retract_decode_steps: int = 20
    ignore_eos: bool = False  # requests say so, as benchmarks do: nothing is bet on an early end
    cuda_graph_max_bs: int = 0  # decode batches up to this run padded graphs, larger ones eagerly; 0: as vLLM does

    @classmethod
    def of(cls, config: EngineConfig) -> SglangOptions:
        """The options of a config. Raises UsageError for one that does not exist or is out of range."""
        options = cls(**config.own_options({each.name: each.default for each in fields(cls)}))
        if options.schedule_policy not in SCHEDULE_POLICIES:
            raise UsageError(f"unknown schedule_policy {options.schedule_policy!r}; known: {', '.join(SCHEDULE_POLICIES)}")
        if not 0.0 <= options.min_new_token_ratio <= options.init_new_token_ratio <= 1.0:
            raise UsageError("sglang: 0 <= min_new_token_ratio <= init_new_token_ratio <= 1 must hold")
        if min(options.max_prefill_tokens, options.ratio_decay_steps, options.clip_new_tokens) < 1:
            raise UsageError("sglang: max_prefill_tokens, ratio_decay_steps and clip_new_tokens must be at least 1")
        return options


class SglangScheduler:
    """The `Scheduler` protocol with SGLang's decisions."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.options = SglangOptions.of(config)
        self.kv = RadixKv(config.num_gpu_blocks - 1, config.block_size, prefix_caching=config.enable_prefix_caching)
        self.queue: list[Request] = []
        self.running: list[Request] = []
        self.ratio = self.options.init_new_token_ratio
        self._order = QueueOrder(self.kv, self.options.schedule_policy)
        self._chunked: Request | None = None
        self._prefilling: list[Request] = []
        self._unpublished: Request | None = None  # its last chunk enters the cache when the next batch is decided
        self._full = False  # no use looking at the queue before a running request finishes

    def add(self, request: Request) -> None:
        """Queue a request. Raises UsageError when it can never fit."""
        check_fits(request, self.config)
        total = request.prompt_tokens + min(request.output_tokens, self.options.clip_new_tokens)
        if self.options.ignore_eos and not self.config.enable_prefix_caching:  # this admission counts whole pages, and a token more
            total = -(-(request.prompt_tokens + request.output_tokens) // self.config.block_size) * self.config.block_size + 1
        if total + self.config.block_size >= self.config.kv_capacity_tokens:
            raise UsageError(
                f"request {request.request_id!r} needs {total + self.config.block_size} tokens, a spare page included, and is admitted "
                f"only below the {self.config.kv_capacity_tokens} of the whole cache"
            )
        self.queue.append(request)

    def unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self.queue) + len(self.running) + (self._chunked is not None)

    def waiting(self) -> int:
        """Requests queued (retracted ones included)."""
        return len(self.queue)

    def kv_blocks_used(self) -> int:
        """KV pages that running requests hold now."""
        return self.kv.used_blocks

    def schedule(self) -> Iteration:
        """A prefill batch when there is one to run, else a decode step."""
        if self._unpublished is not None:
            self.kv.remember(self._unpublished, self._unpublished.computed_tokens)
            self._unpublished = None
        prefill = self._prefill_batch()
        if prefill is not None:
            return prefill
        if self.running:
            return self._decode_batch()
        self.ratio = self.options.init_new_token_ratio
        return Iteration([])

    def complete(self, iteration: Iteration) -> Outcome:
        """Advance the requests that ran, sample where everything known is computed, free the finished."""
        sampled: list[Request] = []
        finished: list[Request] = []
        prefill = bool(self._prefilling)
        for request, tokens in iteration.scheduled:
            request.computed_tokens += tokens
            if request is self._chunked:
                self._unpublished = request
                continue
            request.generated_tokens += 1
            sampled.append(request)
            done = request.generated_tokens >= request.output_tokens
            if prefill or done:
                self.kv.remember(request, request.computed_tokens)
            if done:
                self.kv.free(request)
                finished.append(request)
        if finished or (prefill and (self._unpublished is not None or not self.running)):
            self._full = False
        gone = set(finished)
        self.running = [request for request in (*self.running, *self._prefilling) if request not in gone and request is not self._chunked]
        self._prefilling = []
        return Outcome(sampled, finished)

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
        ratio = 1.0 if self.options.ignore_eos else self.ratio
        committed = sum(self._yet_to_come(request) * ratio for request in self.running)
        chunk = config.max_num_batched_tokens if config.enable_chunked_prefill else None
        budget = PrefillBudget(self.kv, committed, self.options.max_prefill_tokens, chunk)
        shares: list[tuple[Request, int]] = []
        if self._chunked is not None:
            request = self._chunked
            tokens = budget.next_chunk(request.known_tokens - request.computed_tokens)
            if self.kv.blocks_needed(request, request.computed_tokens + tokens) > self.kv.free_blocks:
                return None
            shares.append((request, tokens))
            if request.computed_tokens + tokens == request.known_tokens:
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
            tokens = request.known_tokens - cached
            if endings is not None:
                fits = endings.leave_room(request, [each for each, _ in shares], budget)
            else:
                fits = budget.admits(tokens + self._yet_to_come(request), locks=self.kv.unlocked(node))
            if not fits:
                self._full = bool(self.running or shares)
                break
            share = budget.share(tokens, first=not shares) if endings is None else budget.exact_share(tokens)
            if not share:
                break
            if share < tokens:
                self._chunked = request
            self.kv.hold(request, count, node)
            request.computed_tokens = cached
            if not request.preemptions:
                request.cached_tokens = cached
            admitted.append(request)
            shares.append((request, share))
            budget.reserve(share, 0 if share < tokens else self._at_most(request))
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
            self.kv.allocate(request, request.computed_tokens + tokens)
        self._prefilling = [request for request, _ in shares]
        return Iteration(shares, admitted, [], new)

    def _decode_batch(self) -> Iteration:
        retracted: list[Request] = []
        if self._fits(self.running):
            decay = (self.options.init_new_token_ratio - self.options.min_new_token_ratio) / self.options.ratio_decay_steps
            self.ratio = max(self.ratio - decay, self.options.min_new_token_ratio)
        else:
            retracted = self._retract()
        self.kv.make_room(len(self.running) * self.config.block_size)
        for request in self.running:
            self.kv.allocate(request, request.known_tokens)
        return Iteration([(request, 1) for request in self.running], [], retracted, len(self.running))

    def _retract(self) -> list[Request]:
        """Send requests back to the queue, fewest generated and longest prompt first, until the next step has its
        pages.
        """
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
        generated = sum(request.generated_tokens for request in order)
        asked = sum(request.output_tokens for request in order)
        self.ratio = min(1.0, (generated + self.options.retract_decode_steps * len(order)) / (asked + 1))
        return retracted

    def _send_back(self, request: Request, retracted: list[Request]) -> None:
        self.kv.free(request)
        request.computed_tokens = 0
        request.preemptions += 1
        retracted.append(request)

    def _fits(self, requests: Sequence[Request]) -> bool:
        due = sum(self.kv.blocks_needed(request, request.known_tokens) for request in requests)
        return self.kv.make_room(due * self.config.block_size)

    def _yet_to_come(self, request: Request) -> int:
        return min(request.output_tokens - request.generated_tokens, self.options.clip_new_tokens)

    def _at_most(self, request: Request) -> int:
        return min(request.output_tokens, self.options.clip_new_tokens)
