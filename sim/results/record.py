"""The record of a run as it happens: one row per request and one per iteration, in flat columns.

Nothing is kept per token. A token's inter-token gap is nearly always the time between the ends of two consecutive iterations of
its replica, so each iteration keeps only how many such gaps it closed; the few gaps that span iterations in which the request did
not sample (after a preemption, or a budget that ran out) are kept one by one as stalls.

Which iterations a request took part in follows from two sparse tables: the chunks of prefill that it computed, and the events that
set it back or let it go on. In every other iteration of its replica between its first token and its last it decoded.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.engine.interface import LOST, Outcome, Request
from sim.rates.serving import NO_HOST, HostRates
from sim.results.spill import SpillingTable
from sim.shown import Figures, Shown
from sim.ticks import TICK_S, to_ticks

if TYPE_CHECKING:
    from sim.engine.loop import Step

ITERATION_COLUMNS = (
    "start_s",
    "duration_s",
    "iteration_replica",
    "scheduled",
    "running",
    "waiting",
    "tokens",
    "prefill_tokens",
    "kv_blocks_used",
    "admitted",
    "preempted",
    "sampled",
    "itl_gaps",
    "decided_s",
    "short_of",
    "decode_kv_s",
)
CHUNK_COLUMNS = ("chunk_iteration", "chunk_request", "chunk_tokens", "chunk_end")
EVENT_COLUMNS = ("event_s", "event_request", "event_kind", "event_replica")
# what can happen to a request inside an engine; a pause begins at the end of the iteration in which it sampled last
PAUSED, SAMPLED_AGAIN, PREEMPTED, REPLICA_FAILED, HANDED_OVER, AT_ENGINE, SUBMITTED_AGAIN = range(1, 8)
REQUEST_FLOATS = (
    "arrival_s", "reached_s", "scheduled_s", "first_token_s", "finish_s", "cancelled_s",
    "submitted_s", "first_sampled_s", "last_sampled_s",
)  # fmt: skip
REQUEST_INTS = (
    "prompt_tokens", "output_tokens", "generated_tokens", "cached_tokens", "preemptions", "replica", "turn", "rejected", "decision",
    "repeated_tokens", "host_cached_tokens",
)  # fmt: skip
FLOATS, INTS = len(REQUEST_FLOATS), len(REQUEST_INTS)
REACHED, SCHEDULED, FIRST, FINISH, CANCELLED, SUBMITTED, FIRST_SAMPLED, LAST_SAMPLED = map(
    REQUEST_FLOATS.index,
    ("reached_s", "scheduled_s", "first_token_s", "finish_s", "cancelled_s", "submitted_s", "first_sampled_s", "last_sampled_s"),
)
GENERATED, REPLICA, REJECTED, DECISION, HOST_CACHED = map(
    REQUEST_INTS.index, ("generated_tokens", "replica", "rejected", "decision", "host_cached_tokens")
)
NOT_YET = array("d", [math.nan] * FLOATS)
SPARSE_BYTES = 2**22  # of a sparse table that stay in memory


@dataclass(frozen=True, slots=True, repr=False)
class RunRecord(Shown):
    """A finished run. `requests` and `iterations` map column names to arrays of shape [requests] and [iterations]; `terms` has shape
    [iterations, len(term_names)], seconds; `stall_s` holds the inter-token gaps that span more than one iteration. `paid_s` says of each
    replica how long it was up or on its way up. `chunks` and `events` are the sparse tables, columns of shape [chunks] and [events];
    `decision_names` are what the column `decision` counts.
    """

    request_ids: Sequence[str]
    session_ids: Sequence[str | None]
    requests: dict[str, NDArray[np.generic]]
    iterations: dict[str, NDArray[np.float64]]
    term_names: tuple[str, ...]
    terms: NDArray[np.float64]
    stall_s: NDArray[np.float64]
    paid_s: Sequence[float] = ()
    chunks: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    events: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    decision_names: tuple[str, ...] = ()
    tenants: Sequence[str] = ()  # of each request; empty: nobody has one

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        return f"{len(self.request_ids):,} requests", [("iterations", f"{len(self.terms):,}"), ("terms", ", ".join(self.term_names))]


class _ReplicaState:
    __slots__ = ("last_end_s", "last_sampled")

    def __init__(self) -> None:
        self.last_end_s = math.nan
        self.last_sampled: set[Request] = set()  # sampled in the last iteration and not finished by it


class RunLog:
    """Takes what happens and turns it into a RunRecord.

    The token that the API server of replica i sends at a place (0: at once) reaches its client `hosts[i].after_s(place)` after the end of
    its iteration, a first one `after_s(place, fresh)`, and none before the first. `fresh` is prompt tokens of all that are new in it.
    `on_first_token(request, replica)` is called at that iteration's end. An engine that logs its iterations calls `iteration`, one that
    does not `scheduled`, `first_token` and `last_token`. Without `keep_iterations`, the iteration log stays empty; with it, most of it
    lies in a temporary file (sim.results.spill), so that memory grows with requests alone.
    """

    def __init__(
        self,
        term_names: Sequence[str],
        replicas: int = 1,
        *,
        keep_iterations: bool = True,
        hosts: Sequence[HostRates] = (),
    ) -> None:
        self._keep = keep_iterations
        hosts = hosts or [NO_HOST] * replicas
        self._after_s = [host.after_s for host in hosts]
        self.token_ticks: Sequence[int] = [to_ticks(host.token_s) for host in hosts]  # of each replica's API server, per token
        self.on_first_token: Callable[[Request, int], None] | None = None
        self.term_names = tuple(term_names)
        self._decisions: dict[str, int] = {}  # names of routers' decisions, in the order in which they first came
        self._rows = SpillingTable(len(ITERATION_COLUMNS) + len(self.term_names))
        self._iterations = 0  # rows so far
        self._chunks = SpillingTable(len(CHUNK_COLUMNS), SPARSE_BYTES)
        self._events = SpillingTable(len(EVENT_COLUMNS), SPARSE_BYTES)
        self._prefilling: dict[Request, int] = {}  # started or resumed, and without a token since: its row
        self._stalls = array("d")
        self._stalled_since: dict[Request, float] = {}
        self._ids: list[str] = []
        self._sessions: list[str | None] = []
        self._tenants: list[str] = []
        self._floats, self._ints = array("d"), array("q")  # rows of REQUEST_FLOATS and REQUEST_INTS
        self._resident: dict[Request, int] = {}
        self._replicas = [_ReplicaState() for _ in range(replicas)]
        self.finished = 0

    def unfinished(self) -> int:
        """Requests sent and not finished."""
        return len(self._resident)

    def arrived(self, request: Request, replica: int, reached: int, decision: str = "") -> None:
        """A client sent `request`, and a router gave it to `replica` by the decision of this name, where it is at `reached`; or to another,
        after the first had lost it. -1, and no decision, while no replica is up.
        """
        reached_s = reached * TICK_S if replica >= 0 else math.nan
        chosen = self._decisions.setdefault(decision, len(self._decisions)) if decision else -1
        row = self._resident.setdefault(request, len(self._ids))
        if row == len(self._ids):
            self._open(request, replica, 0, chosen, reached_s)
            return
        self._ints[row * INTS + REPLICA] = replica
        self._ints[row * INTS + DECISION] = chosen
        if math.isnan(self._floats[row * FLOATS + SUBMITTED]):
            self._floats[row * FLOATS + REACHED] = reached_s

    def at_engine(self, request: Request, replica: int, now: int) -> None:
        """`request` waits for room for its KV, or for KV that comes from elsewhere, before the engine gets it."""
        self._event(now * TICK_S, self._resident[request], AT_ENGINE, replica)

    def submitted(self, request: Request, replica: int, now: int) -> None:
        """The engine of `replica` got `request`."""
        row = self._resident[request]
        at = row * FLOATS + SUBMITTED
        if self._floats[at] >= 0.0:
            self._event(now * TICK_S, row, SUBMITTED_AGAIN, replica)
        else:
            self._floats[at] = now * TICK_S

    def rejected(self, request: Request, limit: int) -> None:
        """A client sent `request`, and admission turned it away at this `limit`."""
        self._open(request, -1, limit, -1, math.nan)

    def _open(self, request: Request, replica: int, rejected: int, decision: int, reached_s: float) -> None:
        self._ids.append(request.request_id)
        self._sessions.append(request.session_id)
        self._tenants.append(request.tenant)
        at = len(self._floats)
        self._floats.extend(NOT_YET)
        self._floats[at] = request.arrival_s
        self._floats[at + REACHED] = reached_s
        sizes, said = (request.prompt_tokens, request.output_tokens), (rejected, decision, request.repeated_tokens)
        counts = (*sizes, 0, 0, 0, replica, request.turn, *said, 0)
        self._ints.extend(counts)

    def scheduled(self, request: Request, ticks: int) -> None:
        """An engine decided an iteration that starts `request`; the first counts."""
        at = self._resident[request] * FLOATS + SCHEDULED
        if math.isnan(self._floats[at]):
            self._floats[at] = ticks * TICK_S

    def scheduled_s(self, request: Request) -> float:
        """Time of the first iteration of a request in flight."""
        return self._floats[self._resident[request] * FLOATS + SCHEDULED]

    def first_token(self, request: Request, replica: int, end_s: float, place: float, fresh: int) -> None:
        """The engine sent the first token of `request` at `end_s`, with so many before it at the API server."""
        request.first_token_s = end_s + self._after_s[replica](place, fresh)
        if request.hands_over:
            return
        at = self._resident[request] * FLOATS
        self._floats[at + FIRST_SAMPLED] = end_s
        self._floats[at + FIRST] = request.first_token_s
        if self.on_first_token is not None:
            self.on_first_token(request, replica)

    def last_token(self, request: Request, end_s: float, place: float) -> None:
        """The engine sent the last token of `request` at `end_s`, with so many before it at the API server."""
        row = self._resident[request]
        replica = self._ints[row * INTS + REPLICA]
        if request.hands_over:
            self._event(end_s, row, HANDED_OVER, replica)
            return
        self._floats[row * FLOATS + LAST_SAMPLED] = end_s
        finish_s = max(end_s + self._after_s[replica](place), request.first_token_s)
        if request.given_up_by(finish_s):  # before it came through
            self.cancelled(request)
            return
        del self._resident[request]
        self._floats[row * FLOATS + FINISH] = finish_s
        self._progress(request, row)
        self.finished += 1

    def cancelled(self, request: Request) -> None:
        """The client of `request` gave up, `cancel_s` after it had sent it."""
        row = self._resident.pop(request, None)
        if row is None:
            return
        self._floats[row * FLOATS + CANCELLED] = request.arrival_s + request.cancel_s
        self._progress(request, row)
        self._stalled_since.pop(request, None)
        for state in self._replicas:
            state.last_sampled.discard(request)

    def failed(self, request: Request) -> None:
        """`request` was lost with its replica: its client was notified."""
        row = self._resident.pop(request)
        self._ints[row * INTS + REJECTED] = LOST
        self._progress(request, row)
        self._stalled_since.pop(request, None)

    def lost(self, request: Request, replica: int, now: int) -> None:
        """The replica failed with `request` inside: its next token comes from another."""
        state = self._replicas[replica]
        if request in state.last_sampled:
            state.last_sampled.remove(request)
            self._stalled_since[request] = state.last_end_s
        self._prefilling.pop(request, None)
        self._event(now * TICK_S, self._resident[request], REPLICA_FAILED, replica)

    def iteration(self, replica: int, step: Step, now: int, outcome: Outcome, ahead: float, places: Sequence[float]) -> None:
        """An iteration of `replica` ended `now`: its tokens were sent, `ahead` of earlier ones before them at the API server. `places` are
        tokens before the last ones of the finished.
        """
        iteration, price, end_s = step.iteration, step.price, now * TICK_S
        assert price is not None
        for request in iteration.admitted:
            if request in self._resident:  # not cancelled since
                self.scheduled(request, step.decided)
        gaps = self._sampled(replica, end_s, outcome, ahead)
        if self._keep:
            self._note_requests(replica, step, outcome)
            self._iterations += 1
            self._rows.append(
                (
                    step.started * TICK_S,
                    end_s - step.started * TICK_S,
                    replica,
                    len(iteration.scheduled),
                    step.running,
                    step.waiting,
                    iteration.total_tokens,
                    price.prefill_tokens,
                    step.kv_blocks_used,
                    len(iteration.admitted),
                    len(iteration.preempted),
                    len(outcome.sampled) + outcome.drafts_kept,
                    gaps,
                    step.decided * TICK_S,
                    iteration.short_of,
                    price.decode_kv_s,
                    *price.terms,
                )
            )
        for request, place in zip(outcome.finished, places, strict=True):
            self.last_token(request, end_s, place)

    def _sampled(self, replica: int, end_s: float, outcome: Outcome, ahead: float) -> int:
        """Note first tokens and stalls; return how many gaps equal the time since the replica's last iteration."""
        state = self._replicas[replica]
        sampled, before = set(outcome.sampled), state.last_sampled
        gaps = len(sampled & before)
        if gaps != len(before):
            for request in before - sampled:
                self._stalled_since[request] = state.last_end_s
                self._event(state.last_end_s, self._resident[request], PAUSED, replica)
        if gaps != len(sampled):
            fresh = sum(request.prompt_tokens for request in sampled - before if request.generated_tokens <= 1)
            for place, request in enumerate(outcome.sampled):
                if request in before:
                    continue
                if request.generated_tokens <= 1:
                    self.first_token(request, replica, end_s, ahead + place, fresh)
                else:
                    stall_s = end_s - self._stalled_since.pop(request)
                    if self._keep:
                        self._stalls.append(stall_s)
                        self._event(end_s, self._resident[request], SAMPLED_AGAIN, replica)
        sampled.difference_update(outcome.finished)
        state.last_sampled, state.last_end_s = sampled, end_s
        return gaps

    def _note_requests(self, replica: int, step: Step, outcome: Outcome) -> None:
        """Requests that lost their KV blocks in an iteration, and those that computed a chunk of prefill in it."""
        iteration, prefilling = step.iteration, self._prefilling
        for request in iteration.preempted:
            prefilling.pop(request, None)
            if request in self._resident:
                self._event(step.started * TICK_S, self._resident[request], PREEMPTED, replica)
        for request in iteration.admitted:
            if request in self._resident:
                prefilling[request] = self._resident[request]
        if not prefilling:
            return
        for request, tokens in iteration.scheduled:
            if request in prefilling:
                # one that has lost its blocks since has no computed tokens: at least the chunk's own were
                self._chunks.append((self._iterations, prefilling[request], tokens, max(request.computed_tokens, tokens)))
        for request in (*outcome.sampled, *(each for each in prefilling if each.cancelled)):
            prefilling.pop(request, None)

    def _event(self, time_s: float, row: int, kind: int, replica: int) -> None:
        if self._keep:
            self._events.append((time_s, row, kind, replica))

    def _progress(self, request: Request, row: int) -> None:
        ints, at = self._ints, row * INTS + GENERATED
        ints[at] = request.generated_tokens
        ints[at + 1] = request.cached_tokens
        ints[at + 2] = request.preemptions
        ints[row * INTS + HOST_CACHED] = request.host_cached_tokens

    def record(self, paid_s: Sequence[float] = ()) -> RunRecord:
        """The columns. Requests that have not finished have NaN finish times and the tokens generated so far. `paid_s` as in RunRecord."""
        for request, row in self._resident.items():
            self._progress(request, row)
        table = self._rows.table()
        columns: dict[str, NDArray[np.generic]] = {}
        for names, values in ((REQUEST_FLOATS, self._floats), (REQUEST_INTS, self._ints)):
            each = np.asarray(values).reshape(-1, len(names)).T.copy()
            columns |= dict(zip(names, each, strict=True))
        chunks, events = self._chunks.table(), self._events.table()
        return RunRecord(
            self._ids,
            self._sessions,
            columns,
            {name: table[:, i] for i, name in enumerate(ITERATION_COLUMNS)},
            self.term_names,
            table[:, len(ITERATION_COLUMNS) :],
            np.frombuffer(self._stalls, dtype=np.float64),
            paid_s,
            {name: chunks[:, i] for i, name in enumerate(CHUNK_COLUMNS)},
            {name: events[:, i] for i, name in enumerate(EVENT_COLUMNS)},
            tuple(self._decisions),
            self._tenants if any(self._tenants) else (),
        )
