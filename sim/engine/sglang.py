"""SGLang's scheduler: prefill first. An iteration is either a prefill batch or one token for every running request.

As long as waiting requests fit, prefill batches run and decodes stand still. A prompt longer than the chunk is cut,
and its next chunk opens the next prefill batch. Whether a request fits is a bet: its own tokens in full, and of what
running requests may still generate only a share, `new_token_ratio`, which shrinks with every decode iteration. When
the bet is lost, requests with the fewest generated tokens are retracted to the queue, and the share is raised.

Described after SGLang 0.5. The radix cache (sim.engine.radix) is compared with the engine's own operation by operation, the
scheduler is not. It is kept at page granularity (`block_size`): prompts enter it when their prefill is complete, generated
tokens when the request finishes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields

from sim.engine.config import EngineConfig
from sim.engine.radix import RadixKv
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
        self.queue: deque[Request] = deque()
        self.running: list[Request] = []
        self.ratio = self.options.init_new_token_ratio
        self._chunked: Request | None = None
        self._prefilling: list[Request] = []
        self._full = False  # no use looking at the queue before a running request finishes

    def add(self, request: Request) -> None:
        """Queue a request. Raises UsageError when it can never fit."""
        check_fits(request, self.config)
        total = request.prompt_tokens + min(request.output_tokens, self.options.clip_new_tokens)
        if total >= self.config.kv_capacity_tokens:
            raise UsageError(
                f"request {request.request_id!r} needs {total} tokens and is admitted only below the "
                f"{self.config.kv_capacity_tokens} of the whole cache"
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
        for request, tokens in iteration.scheduled:
            request.computed_tokens += tokens
            if request in self._prefilling:
                self.kv.remember(request, request.computed_tokens)
            if request.computed_tokens < request.known_tokens:
                continue
            request.generated_tokens += 1
            sampled.append(request)
            if request.generated_tokens >= request.output_tokens:
                self.kv.remember(request, request.computed_tokens)
                self.kv.free(request)
                finished.append(request)
        gone = set(finished)
        self.running.extend(r for r in self._prefilling if r is not self._chunked)
        if gone:
            self.running = [request for request in self.running if request not in gone]
            self._full = False
        self._prefilling = []
        return Outcome(sampled, finished)

    def _prefill_batch(self) -> Iteration | None:
        if self._chunked is None and (self._full or not self.queue):
            return None
        page, options = self.config.block_size, self.options
        to_come = sum(self._yet_to_come(request) for request in self.running)
        room = self.kv.free_blocks * page - self.ratio * to_come
        chunk, inputs = self.config.max_num_batched_tokens, options.max_prefill_tokens
        shares: list[tuple[Request, int]] = []
        admitted: list[Request] = []
        if self._chunked is not None:
            request = self._chunked
            tokens = min(request.known_tokens - request.computed_tokens, chunk, inputs)
            if self.kv.blocks_needed(request, request.computed_tokens + tokens) > self.kv.free_blocks:
                return None  # decodes have eaten the room it was promised; they go on, or are retracted
            self._chunked = request if request.computed_tokens + tokens < request.known_tokens else None
            self.kv.allocate(request, request.computed_tokens + tokens)
            shares.append((request, tokens))
            chunk, inputs, room = chunk - tokens, inputs - tokens, room - tokens
            if self._chunked is None:
                room -= self._yet_to_come(request)
        if options.schedule_policy == "lpm" and self.config.enable_prefix_caching:
            self.queue = deque(sorted(self.queue, key=lambda request: -len(self.kv.find_hits(request))))
        while self.queue and self._chunked is None and chunk > 0 and inputs > 0:
            if len(self.running) + len(shares) >= self.config.max_num_seqs:
                self._full = True
                break
            request = self.queue[0]
            hits = self.kv.find_hits(request)
            cached = len(hits) * page
            tokens = request.known_tokens - cached
            locked = page * sum(1 for block in hits if self.kv.evictable(block))
            rounded = -(-tokens // page) * page
            if rounded + self._yet_to_come(request) + locked >= room:
                self._full = bool(self.running or shares)
                break
            if tokens > inputs and shares:
                break
            if tokens > chunk:
                tokens = chunk // page * page
                if tokens <= 0:
                    break
                self._chunked = request
            self.queue.popleft()
            self.kv.allocate(request, cached + tokens, hits)
            request.computed_tokens = cached
            if not request.preemptions:
                request.cached_tokens = cached
            admitted.append(request)
            shares.append((request, tokens))
            room -= -(-tokens // page) * page + locked
            chunk, inputs = chunk - tokens, inputs - tokens
            if self._chunked is None:
                room -= self._yet_to_come(request)
        if not shares:
            return None
        self._prefilling = [request for request, _ in shares]
        return Iteration(shares, admitted, [], sum(tokens for _, tokens in shares))

    def _decode_batch(self) -> Iteration:
        retracted = self._retract() if self._pages_due(self.running) > self.kv.free_blocks else []
        if not retracted:
            decay = (self.options.init_new_token_ratio - self.options.min_new_token_ratio) / self.options.ratio_decay_steps
            self.ratio = max(self.ratio - decay, self.options.min_new_token_ratio)
        for request in self.running:
            self.kv.allocate(request, request.known_tokens)
        return Iteration([(request, 1) for request in self.running], [], retracted, len(self.running))

    def _retract(self) -> list[Request]:
        """Send requests back to the queue, fewest generated and longest prompt first, until the next step has its
        pages.
        """
        order = sorted(self.running, key=lambda request: (-request.generated_tokens, request.prompt_tokens))
        retracted: list[Request] = []
        while len(order) > 1 and self._pages_due(order) > self.kv.free_blocks:
            request = order.pop()
            self.kv.free(request)
            request.computed_tokens = 0
            request.preemptions += 1
            retracted.append(request)
        if self._pages_due(order) > self.kv.free_blocks and self._chunked is not None:
            self.kv.free(self._chunked)
            self._chunked.computed_tokens = 0
            self._chunked.preemptions += 1
            retracted.append(self._chunked)
            self._chunked = None
        left = set(order)
        self.running = [request for request in self.running if request in left]
        self.queue.extend(retracted)
        self._full = False
        generated = sum(request.generated_tokens for request in self.running)
        asked = sum(request.output_tokens for request in self.running)
        self.ratio = min(1.0, (generated + self.options.retract_decode_steps * len(self.running)) / asked)
        return retracted

    def _pages_due(self, requests: Sequence[Request]) -> int:
        return sum(self.kv.blocks_needed(request, request.known_tokens) for request in requests)

    def _yet_to_come(self, request: Request) -> int:
        return min(request.output_tokens - request.generated_tokens, self.options.clip_new_tokens)
