"""Time of one request by stage: those of its TTFT and of its E2EL, each split by what it lacked, whose tokens and which terms.

Times are ticks of 2**-43 s (sim.ticks). The parts of a latency add up to it exactly: to the difference of the recorded times in ticks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.rates.serving import UNITS, HostRates
from sim.results.iteration_shares import WHOSE, Shares, apportioned, shares
from sim.results.metrics import request_latencies_ms
from sim.results.record import RunRecord
from sim.results.run_files import from_dataset
from sim.results.timeline import API_SERVER, KV, MOVED, ROUTER, Piece, Timeline, timeline
from sim.specs.lookup import did_you_mean
from sim.ticks import TICK_S, to_ticks

OWN_REQUEST, TURNS = "own_request", "turns"
RESPONSE, NO_ITERATION = "response", "no_iteration"
OUTSIDE = (ROUTER, API_SERVER, KV, MOVED)
LATENCIES = ("ttft", "e2el")
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DelayPart:
    """A stage of a latency. Each of the splits that is not empty adds up to `ticks`: `why` by what it waited for, `whose` by
    whose tokens its iterations computed (sim.results.iteration_shares), `terms` by the terms of their step time.
    """

    stage: str
    ticks: int
    iterations: int = 0
    why: Mapping[str, int] = field(default_factory=dict)
    whose: Mapping[str, int] = field(default_factory=dict)
    terms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Beside:
    """Another request: the tokens of its prefill that ran while this one waited or computed, and their share of that time in seconds."""

    request_id: str
    tokens: int
    ttft_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class EarlierTurn:
    """The latest turn of the session before: where it ran, and how many first tokens of this prompt that replica had at its end: at most,
    unless it is `known` what the prompt repeats.
    """

    request_id: str
    turn: int
    replica: int
    tokens: int
    known: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """A request and where its time went. `ttft` is empty where no first token came. Of what has not `finished`, `e2el` is the time until
    its client gave up or its replica failed. `beside` has the largest shares first.
    """

    request_id: str
    session_id: str | None
    turn: int
    replica: int
    decision: str
    arrival_s: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    finished: bool
    ttft: tuple[DelayPart, ...]
    e2el: tuple[DelayPart, ...]
    beside: tuple[Beside, ...]
    earlier: EarlierTurn | None

    def ticks(self, latency: str) -> int:
        """TTFT or E2EL by its name in LATENCIES."""
        return sum(part.ticks for part in (self.ttft if latency == LATENCIES[0] else self.e2el))

    def to_dict(self) -> dict[str, Any]:
        """Plain values: latencies and parts in milliseconds, and the ticks that add up."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in (*LATENCIES, "beside", "earlier")}
        for latency in LATENCIES:
            plain[latency] = {"ms": ms(self.ticks(latency)), "parts": [_plain(part) for part in getattr(self, latency)]}
        beside = [asdict(each) for each in self.beside]
        return plain | {"beside": beside, "earlier_turn": asdict(self.earlier) if self.earlier else None}


def ms(ticks: int) -> float:
    """Milliseconds."""
    return 1e3 * ticks * TICK_S


def explain(run: Any, request_id: str, server: HostRates | None = None) -> Explanation:
    """The request of that name in a RunRecord, or in the dataset of a run.nc. `server`, where it is known and the same everywhere, splits
    the time at the API server.

    Raises UsageError for an unknown name, SimctlError where there is nothing to explain (sim.results.timeline).
    """
    record = run if isinstance(run, RunRecord) else from_dataset(run)
    if request_id not in record.request_ids:
        raise UsageError(f"no request {request_id!r} in the run{did_you_mean(request_id, record.request_ids)}")
    return explained(record, list(record.request_ids).index(request_id), server)


def slowest(record: RunRecord, count: int, by: str = LATENCIES[0], server: HostRates | None = None) -> list[Explanation]:
    """The `count` requests of the largest TTFT or E2EL, the largest first; those that did not finish have none."""
    values = request_latencies_ms(record)[by]
    order = np.argsort(-values, kind="stable")[: min(count, int((~np.isnan(values)).sum()))]
    return [explained(record, int(row), server) for row in order]


def explained(record: RunRecord, row: int, server: HostRates | None = None) -> Explanation:
    """The request in this row. Raises SimctlError where there is nothing to explain."""
    course = timeline(record, row)
    first = course.stop if course.first is None else course.first
    places = np.array(sorted(piece.iteration for piece in course.pieces if piece.iteration >= 0), dtype=np.int64)
    found = shares(record, places, row)
    splits = [
        (WHOSE, _by_piece(course.pieces, places, found.whose)),
        (record.term_names, _by_piece(course.pieces, places, record.terms[places])),
    ]
    count = sum(piece.end <= first for piece in course.pieces)
    before, after = (_parts(course.pieces, numbers, splits) for numbers in (range(count), range(count, len(course.pieces))))
    before = [_at_server(part, server, int(record.requests["prompt_tokens"][row])) for part in before]
    way = [DelayPart(RESPONSE, course.over - course.stop)] if course.finished or course.over > course.stop else []
    number = record.requests["decision"][row]
    return Explanation(
        record.request_ids[row],
        record.session_ids[row],
        **{name: int(record.requests[name][row]) for name in _COUNTS},
        decision=record.decision_names[int(number)] if 0 <= number < len(record.decision_names) else "",
        arrival_s=float(record.requests["arrival_s"][row]),
        finished=course.finished,
        ttft=() if course.had_first is None else (*before, DelayPart(RESPONSE, course.had_first - first)),
        e2el=(*before, *after, *way),
        beside=_neighbours(record, course, places, found, first),
        earlier=_earlier(record, row),
    )


_COUNTS = ("turn", "replica", "prompt_tokens", "cached_tokens", "generated_tokens", "preemptions")


def _at_server(part: DelayPart, server: HostRates | None, prompt_tokens: int) -> DelayPart:
    """Of the time at the API server, what the request itself takes there, and its waiting for the turns of others."""
    if server is None or part.stage != API_SERVER:
        return part
    own = min(to_ticks(server.request_s + server.server_s(prompt_tokens)), part.ticks)
    return replace(part, why={OWN_REQUEST: own, TURNS: part.ticks - own}) if own < part.ticks else part


def _by_piece(pieces: Sequence[Piece], places: Ints, weights: NDArray[np.float64]) -> Ints:
    """Ticks of every piece by column of the weights of its iteration [places, columns], those without an iteration in one column more."""
    found = np.zeros((len(pieces), weights.shape[1] + 1), dtype=np.int64)
    inside = [number for number, piece in enumerate(pieces) if piece.iteration >= 0]
    rows = np.searchsorted(places, [pieces[number].iteration for number in inside])
    if inside:
        found[inside, :-1] = apportioned(np.array([pieces[number].ticks for number in inside], dtype=np.int64), weights[rows])
    for number, piece in enumerate(pieces):
        if piece.iteration < 0:
            found[number, -1] = piece.ticks
    return found


def _parts(pieces: Sequence[Piece], chosen: Iterable[int], splits: Sequence[tuple[Sequence[str], Ints]]) -> list[DelayPart]:
    """The chosen pieces by stage, in the order in which the stages first come."""
    stages: dict[str, list[int]] = {}
    for number in chosen:
        stages.setdefault(pieces[number].stage, []).append(number)
    return [_part(stage, [pieces[number] for number in numbers], numbers, splits) for stage, numbers in stages.items()]


def _part(stage: str, mine: Sequence[Piece], numbers: Sequence[int], splits: Sequence[tuple[Sequence[str], Ints]]) -> DelayPart:
    why: dict[str, int] = {}
    for piece in mine:
        if piece.why:
            why[piece.why] = why.get(piece.why, 0) + piece.ticks
    named = [_named(names, table[numbers].sum(axis=0)) for names, table in splits if stage not in OUTSIDE]
    return DelayPart(stage, sum(piece.ticks for piece in mine), sum(piece.iteration >= 0 for piece in mine), why, *named)


def _named(names: Iterable[str], ticks: Ints) -> dict[str, int]:
    return {name: int(value) for name, value in zip((*names, NO_ITERATION), ticks, strict=True) if value}


def _neighbours(record: RunRecord, course: Timeline, places: Ints, found: Shares, first: int) -> tuple[Beside, ...]:
    """Other requests whose prefill ran in the iterations of this one."""
    seconds = np.zeros(len(places))
    early = np.zeros(len(places), dtype=bool)
    for piece in course.pieces:
        if piece.iteration >= 0:
            number = np.searchsorted(places, piece.iteration)
            seconds[number], early[number] = piece.ticks * TICK_S, piece.end <= first
    each = found.weight / found.whose.sum(axis=1)[found.iteration] * seconds[found.iteration]
    rows, which = np.unique(record.chunks["chunk_request"][found.chunk].astype(np.int64), return_inverse=True)
    when = early[found.iteration]
    tokens = np.bincount(which, record.chunks["chunk_tokens"][found.chunk], len(rows))
    before, after = (np.bincount(which, np.where(chosen, each, 0.0), len(rows)) for chosen in (when, ~when))
    order = np.argsort(-(before + after), kind="stable")
    return tuple(Beside(record.request_ids[int(rows[i])], int(tokens[i]), float(before[i]), float(after[i])) for i in order)


def _earlier(record: RunRecord, row: int) -> EarlierTurn | None:
    """The latest turn before this one that a replica served."""
    requests = {name: np.asarray(record.requests[name], dtype=np.int64) for name in (*_COUNTS, "repeated_tokens")}
    session = record.session_ids[row]
    served = (requests["turn"] < requests["turn"][row]) & (requests["replica"] >= 0)
    rows = [i for i in np.flatnonzero(served).tolist() if session is not None and record.session_ids[i] == session]
    if not rows:
        return None
    latest = max(rows, key=lambda i: requests["turn"][i])
    had = int(requests["prompt_tokens"][latest] + requests["generated_tokens"][latest]) - 1  # the last token's KV is never written
    repeated = int(requests["repeated_tokens"][row])
    tokens = min(had, int(requests["prompt_tokens"][row]) if repeated < 0 else repeated)
    return EarlierTurn(record.request_ids[latest], int(requests["turn"][latest]), int(requests["replica"][latest]), tokens, repeated >= 0)


def _plain(part: DelayPart) -> dict[str, Any]:
    splits = {f"{name}_ms": {key: ms(ticks) for key, ticks in getattr(part, name).items()} for name in ("why", "whose", "terms")}
    return {"stage": part.stage, "ms": ms(part.ticks), "ticks": part.ticks, "iterations": part.iterations} | splits


def api_server_of(attrs: Mapping[str, Any]) -> HostRates | None:
    """Rates of the API server of a saved run, by its attributes; None where its pools have several."""
    if attrs.get("pools", 1) != 1:
        return None
    latencies: dict[str, Any] = {name: float(attrs[f"host_{name}"]) for name in UNITS if f"host_{name}" in attrs}
    return HostRates(**latencies) if len(latencies) == len(UNITS) else None
