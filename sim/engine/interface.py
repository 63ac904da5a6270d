"""Interfaces between workload, scheduler, cost and engine loop.

A scheduler knows no time and no cost: the loop (sim.engine.loop) asks it for an iteration, prices it, lets the time pass, and tells it that
the iteration is done. The KV manager below it knows no policy.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from sim.errors import SimctlError


@dataclass(slots=True, eq=False)
class Request:
    """One request: what it asks (above) and where it stands (below). Identity, not value, compares.

    `prompt_hashes` are the content hashes of the *full* KV blocks of prompt and output, in order and chained, so that equal prefixes have
    equal hashes and nothing else does. They stop where nobody else can ask for what follows: empty when nothing is shared, over
    prompt_tokens + output_tokens when a later turn repeats both. `output_tokens` is how many it will generate. Its client gives up
    `cancel_s` after its arrival.
    """

    request_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prompt_hashes: Sequence[Hashable] = ()
    priority: int = 0
    session_id: str | None = None
    turn: int = 0
    cancel_s: float = math.inf
    tenant: str = ""
    model: str = ""
    adapter: str = ""
    images: int = 0
    repeated_tokens: int = -1  # first ones of its prompt that its session's turn before had as well; -1: not known

    computed_tokens: int = 0  # tokens whose KV is in the cache, or comes with the request (computed elsewhere and transferred)
    generated_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens found in the prefix cache at first admission
    host_cached_tokens: int = 0  # of these, those in host RAM
    preemptions: int = 0
    first_token_s: float = 0.0  # when its first token is with its client
    cancelled: bool = False  # its client has given up
    hands_over: bool = False  # goes on at another replica when its first token is sampled, which no client sees

    @property
    def known_tokens(self) -> int:
        """Prompt plus generated so far: what must be in the cache before the next token can be sampled."""
        return self.prompt_tokens + self.generated_tokens

    def given_up_by(self, time_s: float) -> bool:
        """Whether its client waits no longer at this time."""
        return time_s > self.arrival_s + self.cancel_s


QUEUE, TTFT, BUCKET, TOO_LONG, LOST = 1, 2, 3, 4, 5  # which limit of admission turned a request away, or a failed replica
BUDGET, SLOTS, BLOCKS = 1, 2, 3  # what a waiting request can lack: tokens of the iteration, a place among the running, KV blocks


@dataclass(slots=True, eq=False)
class Iteration:
    """One engine step, as decided. `scheduled` lists (request, tokens computed for it), in scheduling order."""

    scheduled: list[tuple[Request, int]]
    admitted: list[Request] = field(default_factory=list)  # started or resumed in this step
    preempted: list[Request] = field(default_factory=list)
    total_tokens: int = 0
    shared: tuple[int, int] = (0, 0)  # tokens of KV counted again by further running requests, and those that several hold (step_clock)
    places: Sequence[int] = ()  # slot numbers of `scheduled`, of engines whose requests have a place of their own
    short_of: int = 0  # what kept the first waiting request out: BUDGET, SLOTS or BLOCKS; 0: nobody waited, or the engine does not say


@dataclass(slots=True, eq=False)
class Outcome:
    """Outcome of an iteration: one sampled token for each of `sampled`, and `drafts_kept` draft tokens over all of them; `finished` are
    done and their blocks are free.
    """

    sampled: list[Request]
    finished: list[Request]
    drafts_kept: int = 0

    def last_places(self) -> list[int]:
        """Places among `sampled` of the `finished`, in their order. Raises SimctlError for one that was not sampled."""
        places: list[int] = []
        after = 0
        try:
            for request in self.finished:
                # schedulers of ours list both in the same order, so that one pass finds all
                try:
                    after = self.sampled.index(request, after)
                except ValueError:
                    after = self.sampled.index(request)
                places.append(after)
        except ValueError:
            raise SimctlError(f"the scheduler finished request {request.request_id} in an iteration that gave it no token") from None
        return places


class Scheduler(Protocol):
    """The seam a user can replace: any class with these methods, named by its dotted path in a scenario."""

    def add(self, request: Request) -> None:
        """Queue a request. Raises UsageError when it can never fit."""

    def schedule(self) -> Iteration:
        """Decide the next iteration; an Iteration with nothing scheduled means there is nothing to run now."""

    def complete(self, iteration: Iteration) -> Outcome:
        """The iteration ran: advance its requests, sample where a request's known tokens are all computed, free the finished."""

    def unfinished(self) -> int:
        """Requests waiting or running."""

    def waiting(self) -> int:
        """Requests queued and not running (preempted ones included)."""

    def kv_blocks_used(self) -> int:
        """KV blocks that running requests hold now (cached but unreferenced blocks are free)."""


@runtime_checkable
class DecidesAhead(Scheduler, Protocol):
    """A scheduler that decides an iteration while the one before it runs (asynchronous scheduling)."""

    def ahead(self) -> Iteration | None:
        """Decide, once, what runs after the iteration under way; None when nothing can. Called before its `complete`."""


@runtime_checkable
class Cancels(Scheduler, Protocol):
    """A scheduler that can drop a request whose client has given up."""

    def cancel(self, request: Request) -> None:
        """`request`, queued or running, is `cancelled`: forget it and free its blocks. An iteration under way goes on computing for it,
        and `complete` says nothing of it.
        """


@runtime_checkable
class KeepsTime(Scheduler, Protocol):
    """A scheduler whose decisions hang on the time, since KV blocks are copied beside its iterations. `idle`: it waits for a copy alone."""

    idle: bool

    def at(self, now: int) -> None:
        """It is `now` (ticks): the next decision follows."""

    def launched(self, now: int, computed: int, ends: int) -> None:
        """The latest iteration decided begins now, the one before it is `computed` at those ticks, and this one `ends` then."""

    def wakes(self) -> int | None:
        """Ticks when to decide again though nothing runs and nothing comes; None where that is of no use."""


@runtime_checkable
class ShowsCache(Scheduler, Protocol):
    """A scheduler that can say what its prefix cache holds."""

    def cached_blocks(self, request: Request) -> int:
        """Leading KV blocks of the request's prompt that are in the cache now."""


class StepPrice(NamedTuple):
    """Cost of one iteration: ticks in all, seconds by term (in the order of StepCost.terms), its prefill tokens, and of the term `kv` the
    seconds for its decodes.
    """

    ticks: int
    terms: Sequence[float]
    prefill_tokens: int
    decode_kv_s: float = 0.0


class StepCost(Protocol):
    """Prices an iteration as decided: called before the scheduler advances its requests."""

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the terms that make up the duration."""

    def host(self, iteration: Iteration) -> int:
        """Ticks for which an iteration keeps the host, its requests at whatever stage. Asked of engines that decide ahead only."""

    def __call__(self, iteration: Iteration, head_start: int = 0) -> StepPrice:
        """Ticks of the iteration, begun on the host so many ticks before the GPU was free for it, and its seconds by term."""
