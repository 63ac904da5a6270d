"""vLLM's asynchronous scheduling: an iteration is decided while the one before it runs.

The device never waits for the scheduler, at a price in decisions: a request that arrives during an iteration is not in the next one, which
is decided already, but in the one after; and a finished request keeps its place and its KV blocks through one more decision. Decisions
equal those of the AsyncScheduler of vLLM 0.33.0 and 0.32.0 (sim.engine.versions), stepped as its engine core does, two batches deep
(tests/engine).
"""

from __future__ import annotations

from collections import deque

from sim.engine.config import EngineConfig
from sim.engine.fits import check_fits
from sim.engine.interface import Iteration, Outcome, Request
from sim.engine.vllm import VllmScheduler


class AsyncVllmScheduler(VllmScheduler):
    """The `Scheduler` protocol over overlapping iterations.

    `schedule` returns the iteration decided earlier, or decides one when there is none. Its successor is decided by `ahead`, while it runs
    and before what it does to its requests is known; without that call, in `complete`, from what was queued at the last `schedule`.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        # tokens, and samples (drafts included), of iterations decided and not complete; of a preempted request, those it no longer owns
        self._ahead: dict[Request, int] = {}
        self._coming: dict[Request, int] = {}
        self._stale: dict[Request, int] = {}
        self._held_back: list[Request] = []  # stale ones, while others are admitted
        self._deferred: set[Request] = set()  # those that were held back and are still queued
        self._late: list[Request] = []  # arrived since the last decision
        self._decided_ahead = False  # whether the running iteration's successor is decided
        self._decided: deque[tuple[Iteration, dict[Request, int]]] = deque()  # and who samples in it, with how many drafts
        self._never_accepted: deque[set[Request]] = deque()  # `_blind` of each
        self._evicted: list[Request] = []  # by decisions that then had nothing to run

    def add(self, request: Request) -> None:
        """Queue a request. Raises UsageError when it can never fit."""
        check_fits(request, self.config, 2 * self.speculation.draft_tokens + self.speculation.lookahead_tokens)
        self._late.append(request)

    def cancel(self, request: Request) -> None:
        """Forget a request whose client has given up, and free its blocks."""
        if request in self._late:
            self._late.remove(request)
            return
        for counts in (self._ahead, self._coming, self._stale):
            counts.pop(request, None)
        self._deferred.discard(request)
        super().cancel(request)

    def unfinished(self) -> int:
        """Requests waiting or running."""
        return super().unfinished() + len(self._late)

    def waiting(self) -> int:
        """Requests queued and not running (preempted ones included)."""
        return super().waiting() + len(self._late)

    def schedule(self) -> Iteration:
        """The iteration to run now: decided one iteration ago, or now when there was nothing to decide on then."""
        self._take_late()
        if not self._decided:
            self._decide()
        return self._decided[0][0] if self._decided else Iteration([], preempted=self._take_evicted())

    def ahead(self) -> Iteration | None:
        """Decide, once, what runs after the iteration under way; None when nothing can."""
        self._take_late()
        self._decide()
        self._decided_ahead = True
        return self._decided[-1][0] if len(self._decided) > 1 else None

    def complete(self, iteration: Iteration) -> Outcome:
        """Decide the next iteration, unless that is done, then complete this one."""
        if not self._decided_ahead:
            self._decide()
        self._decided_ahead = False
        decided, sampling = self._decided.popleft()
        assert decided is iteration
        blind, drafts_kept = self._never_accepted.popleft(), 0
        sampled: list[Request] = []
        finished: list[Request] = []
        for request, tokens in iteration.scheduled:
            if request.cancelled:  # its successor is decided, and priced by how far the request has come
                request.computed_tokens += tokens
                request.generated_tokens += request in sampling
                request.computed_tokens -= sampling.get(request, 0)
                continue
            if request.generated_tokens >= request.output_tokens:  # accepted drafts were its last tokens: this one is nobody's
                continue
            stale = request in self._stale
            if stale:
                _less(self._stale, request, tokens)
            else:
                _less(self._ahead, request, tokens)
                request.computed_tokens += tokens
            if request not in sampling:
                continue
            drafts = sampling[request]
            request.generated_tokens += 1
            accepted = self._verified(request, drafts, request in blind)
            request.generated_tokens += accepted
            drafts_kept += accepted
            sampled.append(request)
            if not stale:
                request.computed_tokens -= drafts - accepted
                _less(self._coming, request, 1 + drafts)
                self._remember_known(request)
            if request.generated_tokens >= request.output_tokens:
                finished.append(request)
                if stale:
                    self.queue.discard(request)
                    self._deferred.discard(request)
                else:
                    self._ahead.pop(request, None)
                    self._coming.pop(request, None)
                    self._forget(request)
        if finished:
            gone = set(finished)
            self.running = [request for request in self.running if request not in gone]
        return Outcome(sampled, finished, drafts_kept)

    def progress(self, request: Request) -> tuple[int, int]:
        """`VllmScheduler.progress` once what is under way has run; nothing to compute when its last token is on the way."""
        start, coming = request.computed_tokens + self._ahead.get(request, 0), self._coming.get(request, 0)
        if coming and start + 2 - coming >= request.prompt_tokens + request.output_tokens:
            return start, 0
        return start, request.prompt_tokens + request.generated_tokens + coming - start

    def next_waiting(self) -> Request | None:
        """The first whose tokens are not still on the way."""
        while self.queue and self.queue.peek() in self._stale:
            self._held_back.append(self.queue.pop())
            self._deferred.add(self._held_back[-1])
        return super().next_waiting()

    def _admit(self, chosen: dict[Request, int], admitted: list[Request], budget: int, threshold: int) -> int:
        short_of = super()._admit(chosen, admitted, budget, threshold)
        while self._held_back:
            self.queue.put_back(self._held_back.pop())
        self._deferred.difference_update(admitted)
        return short_of

    def _somebody_waits(self) -> bool:
        """Whether a waiting request could have been admitted, had there been room: those held back could not."""
        return len(self.queue) > len(self._deferred)

    def _take_late(self) -> None:
        for request in self._late:
            self.queue.add(request)
        self._late.clear()

    def _decide(self) -> None:
        iteration = super().schedule()
        sampling: dict[Request, int] = {}
        drafting = self.speculation.draft_tokens
        ahead, samples = self._ahead, self._coming
        for request, tokens in iteration.scheduled:
            ahead[request] = coming = ahead.get(request, 0) + tokens
            sampled = samples.get(request, 0)
            drafts = request.computed_tokens + coming - request.prompt_tokens - request.generated_tokens - sampled
            if drafts >= 0:
                sampling[request] = drafts
                samples[request] = sampled + 1 + drafts
                if drafting:
                    self._drafts[request] = drafting  # the worker has them by the next decision
        blind = self._blind.copy()
        self._blind.clear()
        if iteration.scheduled:
            self._never_accepted.append(blind)
            iteration.preempted[:0] = self._take_evicted()
            self._decided.append((iteration, sampling))
        else:
            self._evicted.extend(iteration.preempted)

    def _preempt(self, request: Request) -> None:
        """Drop the request's KV. What is still being computed for it is delivered, and only then may it come back."""
        ahead = self._ahead.pop(request, 0)
        if ahead:
            self._stale[request] = self._stale.get(request, 0) + ahead
        self._coming.pop(request, None)
        super()._preempt(request)

    def _take_evicted(self) -> list[Request]:
        evicted, self._evicted = self._evicted, []
        return evicted


def _less(counts: dict[Request, int], request: Request, by: int) -> None:
    counts[request] -= by
    if not counts[request]:
        del counts[request]
