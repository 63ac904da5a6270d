"""The record of a run as it happens: one row per request and one per iteration, in flat columns.

Nothing is kept per token. A token's inter-token gap is nearly always the time between the ends of two consecutive iterations of
its replica, so each iteration keeps only how many such gaps it closed; the few gaps that span iterations in which the request did
not sample (after a preemption, or a budget that ran out) are kept one by one as stalls.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.engine.types import Iteration, Outcome, Request
from sim.host import NO_HOST
from sim.spill import SpillingTable

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
)
REQUEST_FLOATS = ("arrival_s", "scheduled_s", "first_token_s", "finish_s")
REQUEST_INTS = ("prompt_tokens", "output_tokens", "generated_tokens", "cached_tokens", "preemptions", "replica", "turn", "rejected")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A finished run. `requests` and `iterations` map column names to arrays of shape [requests] and [iterations]; `terms` has shape
    [iterations, len(term_names)], seconds; `stall_s` holds the inter-token gaps that span more than one iteration.
    """

    request_ids: Sequence[str]
    session_ids: Sequence[str | None]
    requests: dict[str, NDArray[np.generic]]
    iterations: dict[str, NDArray[np.float64]]
    term_names: tuple[str, ...]
    terms: NDArray[np.float64]
    stall_s: NDArray[np.float64]


def empty_log(
    request_ids: Sequence[str], session_ids: Sequence[str | None], requests: dict[str, NDArray[np.generic]], term_names: tuple[str, ...]
) -> RunRecord:
    """A record of requests alone."""
    nothing = np.empty(0)
    log = dict.fromkeys(ITERATION_COLUMNS, nothing)
    return RunRecord(request_ids, session_ids, requests, log, term_names, np.empty((0, len(term_names))), nothing)


class _ReplicaState:
    __slots__ = ("last_end_s", "last_sampled", "stalled_since")

    def __init__(self) -> None:
        self.last_end_s = math.nan
        self.last_sampled: set[Request] = set()  # sampled in the last iteration and not finished by it
        self.stalled_since: dict[Request, float] = {}


class RunLog:
    """Takes what happens and turns it into a RunRecord.

    The token at a place (0 the first) of an iteration reaches its client `after_s(place)` after the end of it.
    `on_first_token(request, replica)` is called at that iteration's end. Without `keep_iterations`, the iteration log stays empty; with
    it, most of it lies in a temporary file (sim.spill), so that memory grows with requests alone.
    """

    def __init__(
        self,
        term_names: Sequence[str],
        replicas: int = 1,
        *,
        keep_iterations: bool = True,
        after_s: Callable[[int], float] = NO_HOST.after_s,
    ) -> None:
        self._keep = keep_iterations
        self._after_s = after_s
        self.on_first_token: Callable[[Request, int], None] | None = None
        self.term_names = tuple(term_names)
        self._rows = SpillingTable(len(ITERATION_COLUMNS) + len(self.term_names))
        self._stalls = array("d")
        self._ids: list[str] = []
        self._sessions: list[str | None] = []
        self._floats = {name: array("d") for name in REQUEST_FLOATS}
        self._ints = {name: array("q") for name in REQUEST_INTS}
        self._resident: dict[Request, int] = {}
        self._replicas = [_ReplicaState() for _ in range(replicas)]
        self.finished = 0

    def arrived(self, request: Request, replica: int) -> None:
        """A client sent `request`, and the router gave it to `replica`."""
        self._resident[request] = len(self._ids)
        self._open(request, replica, 0)

    def rejected(self, request: Request, limit: int) -> None:
        """A client sent `request`, and admission turned it away at this `limit`."""
        self._open(request, -1, limit)

    def _open(self, request: Request, replica: int, rejected: int) -> None:
        self._ids.append(request.request_id)
        self._sessions.append(request.session_id)
        floats, ints = self._floats, self._ints
        floats["arrival_s"].append(request.arrival_s)
        for name in ("scheduled_s", "first_token_s", "finish_s"):
            floats[name].append(math.nan)
        for name, value in (
            ("prompt_tokens", request.prompt_tokens),
            ("output_tokens", request.output_tokens),
            ("generated_tokens", 0),
            ("cached_tokens", 0),
            ("preemptions", 0),
            ("replica", replica),
            ("turn", request.turn),
            ("rejected", rejected),
        ):
            ints[name].append(value)

    def iteration(
        self,
        replica: int,
        start_s: float,
        end_s: float,
        iteration: Iteration,
        outcome: Outcome,
        places: Sequence[int],
        *,
        decided_s: float,
        running: int,
        waiting: int,
        prefill_tokens: int,
        kv_blocks_used: int,
        terms: Sequence[float],
    ) -> None:
        """An iteration of `replica` ran from `start_s` to `end_s`, when its tokens were sent. `places` are those of the finished among the
        sampled (Outcome.last_places); the counts are those at its decision.
        """
        for request in iteration.admitted:
            row = self._resident[request]
            if math.isnan(self._floats["scheduled_s"][row]):
                self._floats["scheduled_s"][row] = decided_s
        gaps = self._sampled(replica, end_s, outcome)
        if self._keep:
            self._rows.append(
                (
                    start_s,
                    end_s - start_s,
                    replica,
                    len(iteration.scheduled),
                    running,
                    waiting,
                    iteration.total_tokens,
                    prefill_tokens,
                    kv_blocks_used,
                    len(iteration.admitted),
                    len(iteration.preempted),
                    len(outcome.sampled) + outcome.drafts_kept,
                    gaps,
                    *terms,
                )
            )
        for request, place in zip(outcome.finished, places, strict=True):
            self._close(request, end_s + self._after_s(place))

    def _sampled(self, replica: int, end_s: float, outcome: Outcome) -> int:
        """Book first tokens and stalls; return how many gaps equal the time since the replica's last iteration."""
        state = self._replicas[replica]
        sampled, before = set(outcome.sampled), state.last_sampled
        gaps = len(sampled & before)
        if gaps != len(before):
            for request in before - sampled:
                state.stalled_since[request] = state.last_end_s
        if gaps != len(sampled):
            for place, request in enumerate(outcome.sampled):
                if request in before:
                    continue
                if request.generated_tokens <= 1:
                    self._floats["first_token_s"][self._resident[request]] = end_s + self._after_s(place)
                    if self.on_first_token is not None:
                        self.on_first_token(request, replica)
                else:
                    stall_s = end_s - state.stalled_since.pop(request)
                    if self._keep:
                        self._stalls.append(stall_s)
        sampled.difference_update(outcome.finished)
        state.last_sampled, state.last_end_s = sampled, end_s
        return gaps

    def _close(self, request: Request, finish_s: float) -> None:
        row = self._resident.pop(request)
        self._floats["finish_s"][row] = finish_s
        self._progress(request, row)
        self.finished += 1

    def _progress(self, request: Request, row: int) -> None:
        self._ints["generated_tokens"][row] = request.generated_tokens
        self._ints["cached_tokens"][row] = request.cached_tokens
        self._ints["preemptions"][row] = request.preemptions

    def record(self) -> RunRecord:
        """The columns. Requests that have not finished have NaN finish times and the tokens generated so far."""
        for request, row in self._resident.items():
            self._progress(request, row)
        table = self._rows.table()
        columns: dict[str, NDArray[np.generic]] = {name: np.frombuffer(values, dtype=np.float64) for name, values in self._floats.items()}
        columns |= {name: np.frombuffer(values, dtype=np.int64) for name, values in self._ints.items()}
        return RunRecord(
            self._ids,
            self._sessions,
            columns,
            {name: table[:, i] for i, name in enumerate(ITERATION_COLUMNS)},
            self.term_names,
            table[:, len(ITERATION_COLUMNS) :],
            np.frombuffer(self._stalls, dtype=np.float64),
        )
