"""vLLM's V1 scheduler: one token budget per iteration, running requests first, then waiting ones.

There is no prefill or decode phase: every request has known tokens (prompt and generated) and computed tokens, and an iteration lets the
second catch up with the first. Decisions equal those of vLLM 0.33.0 and, by `engine_version` (sim.engine.versions), 0.32.0, for text models
with full attention and synchronous scheduling; tests/engine/test_decisions_equal_vllm.py compares them iteration by iteration.
"""

from __future__ import annotations

from sim.engine.config import EngineConfig
from sim.engine.fits import check_fits
from sim.engine.interface import BLOCKS, BUDGET, SLOTS, Iteration, Outcome, Request
from sim.engine.kv.cache import KvCacheManager
from sim.engine.kv.tiers import TieredKvCacheManager, tiers_of
from sim.engine.prefill_interval import PrefillInterval
from sim.engine.queues import FcfsQueue, PriorityQueue
from sim.engine.speculative import Speculation
from sim.engine.versions import rules_of


class VllmScheduler:
    """The `Scheduler` protocol with vLLM V1's decisions."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.rules = rules_of(config.engine_version)
        tiers = tiers_of(config)
        self.kv = (
            TieredKvCacheManager(config.num_gpu_blocks, config.block_size, tiers)
            if tiers
            else KvCacheManager(config.num_gpu_blocks, config.block_size, prefix_caching=config.enable_prefix_caching)
        )
        self.queue: FcfsQueue | PriorityQueue = PriorityQueue() if config.policy == "priority" else FcfsQueue()
        self.running: list[Request] = []
        self._watermark_blocks = int(config.watermark * config.num_gpu_blocks)
        self.speculation = Speculation.of(config)
        self._drafts: dict[Request, int] = {}  # draft tokens proposed for the next iteration
        self._uniform = False
        # given draft rows without drafts, to keep the batch uniform: none can be accepted
        self._blind: set[Request] = set()
        self._prefilling: set[Request] = set()  # running ones whose latest share left some of their prompt to compute
        self._interval = PrefillInterval(config.prefill_schedule_interval)

    def add(self, request: Request) -> None:
        """Queue a request. Raises UsageError when it can never fit."""
        check_fits(request, self.config, self.speculation.draft_tokens + self.speculation.lookahead_tokens)
        self.queue.add(request)

    def cancel(self, request: Request) -> None:
        """Forget a request whose client has given up, and free its blocks: an iteration under way still writes them, before any other."""
        if request in self.running:
            self.running.remove(request)
            self._forget(request)
        else:
            self.queue.discard(request)

    def cached_blocks(self, request: Request) -> int:
        """Leading KV blocks of the request's prompt that are in HBM now."""
        return len(self.kv.find_hits(request))

    def unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self.queue) + len(self.running)

    def waiting(self) -> int:
        """Requests queued and not running (preempted ones included)."""
        return len(self.queue)

    def kv_blocks_used(self) -> int:
        """KV blocks that running requests hold now."""
        return self.kv.used_blocks

    def schedule(self) -> Iteration:
        """Decide the next iteration: running requests in order, then admissions unless somebody was preempted."""
        if self._interval.least > 1:
            self._interval.decide(any(request not in self._prefilling for request in self.running))
        # A long prompt is held back only for the sake of others.
        threshold = self.config.long_prefill_token_threshold if self.unfinished() > 1 else 0
        chosen: dict[Request, int] = {}
        preempted: list[Request] = []
        budget = self.config.max_num_batched_tokens - self.speculation.drafter_rows  # each request leaves room for the next one's
        budget = self._schedule_running(chosen, preempted, budget, threshold)
        admitted: list[Request] = []
        short_of = BLOCKS if preempted else self._admit(chosen, admitted, budget, threshold)
        if self._interval.least > 1:
            self._keep_interval(chosen, admitted, preempted)
        shared = self.kv.shared_blocks * self.config.block_size, self.kv.common_blocks * self.config.block_size
        return Iteration(list(chosen.items()), admitted, preempted, sum(chosen.values()), self.kv.take_reloads(), shared, short_of=short_of)

    def complete(self, iteration: Iteration) -> Outcome:
        """Advance the requests that ran, sample where everything known is computed, free the finished."""
        sampled: list[Request] = []
        finished: list[Request] = []
        drafting, drafts_kept = self.speculation.draft_tokens, 0
        for request, tokens in iteration.scheduled:
            if request.cancelled:
                continue
            request.computed_tokens += tokens
            verified = request.computed_tokens - request.known_tokens
            if verified < 0:
                continue
            request.generated_tokens += 1
            accepted = self._verified(request, verified, request in self._blind)
            request.computed_tokens -= verified - accepted
            request.generated_tokens += accepted
            drafts_kept += accepted
            sampled.append(request)
            if drafting and self.rules.remembers_samples:
                self._remember_known(request)
            if request.generated_tokens >= request.output_tokens:
                finished.append(request)
                self.kv.free(request)
            elif drafting:
                self._drafts[request] = drafting
        self._blind.clear()
        if finished:
            gone = set(finished)
            self.running = [request for request in self.running if request not in gone]
        return Outcome(sampled, finished, drafts_kept)

    def _verified(self, request: Request, drafts: int, blind: bool) -> int:
        """Draft tokens kept of those verified beside the token just sampled: none past the last one."""
        if blind or not drafts:
            return 0
        return min(self.accept(request, drafts), request.output_tokens - request.generated_tokens)

    def _remember_known(self, request: Request) -> None:
        """Make the full blocks that are computed findable: the token after them was just sampled, so that they can be named."""
        if request.computed_tokens >= (request.hashed_blocks + 1) * self.config.block_size:
            self.kv.remember(request, request.computed_tokens)

    def accept(self, request: Request, drafts: int) -> int:
        """Number of the request's `drafts` draft tokens that the model accepts."""
        return self.speculation.accepted(request, drafts)

    def progress(self, request: Request) -> tuple[int, int]:
        """(tokens whose KV is computed, tokens to compute until all that is known is) of a running request."""
        computed = request.computed_tokens
        return computed, request.prompt_tokens + request.generated_tokens - computed

    def next_waiting(self) -> Request | None:
        """The request to start next, left in the queue."""
        return self.queue.peek() if self.queue else None

    def _schedule_running(self, chosen: dict[Request, int], preempted: list[Request], budget: int, threshold: int) -> int:
        """Give each running request its tokens, preempting from the back while KV blocks are short. Returns the budget left."""
        drafting, lookahead, drafter = self.speculation.draft_tokens, self.speculation.lookahead_tokens, self.speculation.drafter_rows
        self._uniform = drafting > 0  # whether no request in the middle of its prefill runs
        kv, block_size, unnamed = self.kv, self.config.block_size, self.speculation.unnamed_tokens
        held_back = self._prefilling if self._interval.holds else ()
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            start, wanted = self.progress(request)
            if not wanted or request in held_back:
                index += 1
                continue
            if drafting:
                drafts = self._drafts.get(request, 0)
                wanted = min(wanted + drafts, self.config.max_model_len - start - 1)
                if wanted <= 0:
                    index += 1
                    continue
            tokens = _capped(wanted, budget, threshold) if wanted > 1 else wanted
            upto = start + tokens
            room = min(upto + lookahead, self.config.max_model_len)
            grows = room > len(request.blocks) * block_size
            left = False
            while grows and not left and kv.blocks_needed(request, room) > kv.free_blocks:
                victim = self._victim()
                position = self.running.index(victim)
                del self.running[position]
                if position < index:
                    index -= 1
                if victim in chosen:
                    budget += chosen.pop(victim) + drafter
                self._preempt(victim)
                preempted.append(victim)
                left = victim is request
            if left:
                if self.rules.goes_on and self.config.policy == "priority":
                    continue  # those behind it may still fit
                return budget
            if drafting:
                self._uniform = self._uniform and self._drafts.pop(request, 0) > 0
            if grows:
                kv.allocate(request, room)
            findable = min(upto, request.prompt_tokens + request.generated_tokens - unnamed)
            if findable >= (request.hashed_blocks + 1) * block_size:
                kv.remember(request, findable)
            chosen[request] = tokens
            budget -= tokens + drafter
            index += 1
        return budget

    def _admit(self, chosen: dict[Request, int], admitted: list[Request], budget: int, threshold: int) -> int:
        """Start waiting requests, in queue order and stopping at the first that does not fit. Returns what that one lacks."""
        config, kv = self.config, self.kv
        began, uniform = bool(chosen), self._uniform
        while budget > 0 and len(self.running) < config.max_num_seqs and (request := self.next_waiting()) is not None:
            hits = kv.find_hits(request)
            if self.speculation.drops_last_hit:
                del hits[-1:]
            below = kv.lower_hits(request, len(hits))
            cached = (len(hits) + below) * config.block_size
            start = max(cached, min(request.computed_tokens, request.known_tokens - 1))  # transferred KV: the last token is computed anew
            remaining = request.known_tokens - start
            if remaining > 1 and self._interval.holds:
                return BUDGET
            padded = remaining == 1 and uniform and (began or start > 0) and self._pads(start)
            if padded:
                remaining += self.speculation.draft_tokens
                if remaining > budget:
                    return BUDGET
            tokens = _capped(remaining, None, threshold)
            if tokens > budget and not config.enable_chunked_prefill:
                return BUDGET
            tokens = min(tokens, budget)
            room = kv.free_blocks - (self._watermark_blocks if self.running else 0)
            # Without the reservation a long prompt would be let in on the strength of its first chunk and preempted later.
            reserve = request.known_tokens if config.reserve_full_prompt else start + tokens
            upto = start + tokens
            slots = min(upto + self.speculation.lookahead_tokens, config.max_model_len)
            if kv.blocks_needed(request, max(reserve, slots), hits) > room:
                return BLOCKS
            self.queue.pop()
            self.running.append(request)
            kv.reload(request, len(hits), below)  # before the allocation, which may push other contents down
            kv.allocate(request, slots, hits)
            kv.remember(request, min(upto, request.known_tokens - self.speculation.unnamed_tokens))
            if padded:
                self._blind.add(request)
            if not request.preemptions and not request.computed_tokens:
                request.cached_tokens = cached
            request.computed_tokens = start
            admitted.append(request)
            chosen[request] = tokens
            budget -= tokens + self.speculation.drafter_rows
        if not self.queue:
            return 0
        return SLOTS if len(self.running) >= config.max_num_seqs else BUDGET if budget <= 0 else 0

    def _pads(self, cached: int) -> bool:
        """Whether a request that starts with one token has room for draft rows, so that all of a decode batch have one length."""
        drafts = self.speculation.draft_tokens
        return drafts > 0 and cached + drafts + 2 <= self.config.max_model_len

    def _victim(self) -> Request:
        if self.config.policy == "priority":
            return max(self.running, key=lambda request: (request.priority, request.arrival_s))
        return self.running[-1]

    def _preempt(self, request: Request) -> None:
        """Drop the request's KV and drafts; it will recompute prompt and generated tokens, less what is still cached."""
        self._forget(request)
        request.computed_tokens = 0
        request.preemptions += 1
        self.queue.put_back(request)

    def _forget(self, request: Request) -> None:
        """Take blocks and drafts from a request that runs no longer."""
        self.kv.free(request)
        self._drafts.pop(request, None)
        self._prefilling.discard(request)

    def _keep_interval(self, chosen: dict[Request, int], admitted: list[Request], preempted: list[Request]) -> None:
        """Note what a decision means for how long prefill is held back."""
        started = set(admitted)
        prefills = any(request in self._prefilling for request in chosen if request not in started)
        for request, tokens in chosen.items():
            wanted = request.known_tokens - request.computed_tokens if request in started else self.progress(request)[1]
            prefills = prefills or (request in started and wanted > 1)
            (self._prefilling.add if tokens < wanted else self._prefilling.discard)(request)
        waits = None if preempted else self._somebody_waits()
        self._interval.decided(bool(chosen), prefills, waits)

    def _somebody_waits(self) -> bool:
        """Whether a waiting request could have been admitted, had there been room."""
        return len(self.queue) > 0


def _capped(tokens: int, budget: int | None, threshold: int) -> int:
    if 0 < threshold < tokens:
        tokens = threshold
    return tokens if budget is None else min(tokens, budget)
