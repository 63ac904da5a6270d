"""Requests of a served log in one form: in order of sending, with what came back and, of those that got nothing, how long they waited."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_high
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.logs.closed_loop import binds, clients_of, ends_of, in_flight_at_sending, numbered
from calibrate.served.runs import MOST_TOKENS, Experiment, ServedRun
from sim.errors import UsageError
from sim.study.deployment import Deployment
from sim.workload import lines
from sim.workload.content import Content, SystemPrompt

Array = NDArray[np.float64]
FEWEST = 10
PAUSE_S = 10.0  # between loads laid end to end
LONGEST_S = 86_400.0


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request, `where` in its file. Times in seconds; `sent_s` on the log's own clock, NaN where the log does not say.

    `waited_s` is set for a request that was given up after that long: its answer would have taken longer.
    """

    where: str
    sent_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_s: float = math.nan
    e2el_s: float = math.nan
    waited_s: float = math.nan
    cached_tokens: float = math.nan
    session: str = ""
    client: str = ""
    content: Content | None = None
    token_s: tuple[float, ...] = ()  # when its tokens came, from its sending on, where that is written down

    def __post_init__(self) -> None:
        """Raise UsageError naming the request unless it can be one."""
        if self.sent_s < 0 or abs(self.sent_s) == math.inf:
            raise UsageError(f"{self.where}: was sent at {self.sent_s:g} s: negative or infinite")
        for name in ("prompt_tokens", "output_tokens"):
            if not 1 <= getattr(self, name) <= MOST_TOKENS:
                raise UsageError(f"{self.where}: {name} must be a whole number from 1 up, got {getattr(self, name):.6g}")
        if math.isfinite(self.waited_s):
            if not 0 < self.waited_s <= LONGEST_S:
                raise UsageError(f"{self.where}: was given up after {self.waited_s:g} s: not a wait of 0 to a day (wrong unit?)")
            return
        for name in ("ttft_s", "e2el_s"):
            value = getattr(self, name)
            if not math.isfinite(value):
                raise UsageError(f"{self.where}: {name} is not a number")
            if not 0 < value <= LONGEST_S:
                raise UsageError(f"{self.where}: {name} is {value:g} s: not in 0 to a day (negative, or another unit?)")
        if self.ttft_s > self.e2el_s * (1 + 1e-9):
            raise UsageError(f"{self.where}: its first token ({self.ttft_s:g} s) came after its last ({self.e2el_s:g} s)")


@dataclass(frozen=True)
class ServedLog:
    """A log as an experiment to replay: all requests that were sent with known lengths. `answered` [request] marks those with times.

    `waited_s` [request] is finite for those given up. `notes` say in words what was left out or assumed.
    """

    experiment: Experiment
    answered: NDArray[np.bool_]
    waited_s: Array
    source: str
    notes: tuple[str, ...] = field(default=())
    model_id: str = ""  # the model that the log names, where it does
    parts: tuple[Experiment, ...] = ()  # of several logs of one server, whose requests are laid end to end: each one's load

    @property
    def loads(self) -> tuple[Experiment, ...]:
        """Loads to be replayed one by one; their requests in order are the log's."""
        return self.parts or (self.experiment,)

    def served_by(self, d: Deployment, name: str) -> ServedRun:
        """The log as a served run of a deployment."""
        engine = f"{self.source} of {d.limits.engine}"
        return ServedRun(name, d.gpu, d.model, d.precision, d.limits, d.tp, engine, (self.experiment,), self.notes)


def assemble(
    seen: Sequence[LoggedRequest],
    *,
    name: str,
    source: str,
    notes: Sequence[str] = (),
    rate_per_s: float = math.inf,
    burstiness: float = 1.0,
    clients: int = 0,
    assume_prefix: int = 0,
    stated: Mapping[str, float] | None = None,
    model_id: str = "",
    fewest: int = FEWEST,
) -> ServedLog:
    """Sort, check and, where the log does not say when requests were sent, place them.

    Without sending times a finite rate is drawn anew (gamma gaps of that burstiness, another draw than the run's own), a number of clients
    is replayed as a closed loop, and neither means all at once. With them, `clients` that held requests back are distinguished by who was
    free. `stated` are the figures of a file without single requests. Prompts of which nothing is said share their first `assume_prefix`
    tokens. Raises UsageError when fewer than `fewest` requests were answered.
    """
    seen = [s if not assume_prefix or s.content or s.session else replace(s, content=_assumed(s, assume_prefix)) for s in seen]
    said, kind, sent = list(notes), "open", np.array([s.sent_s for s in seen])
    if np.isnan(sent).any():
        sent, kind = _placed(len(seen), rate_per_s, burstiness, clients, said)
    order = np.argsort(sent, kind="stable")
    seen, sent = [seen[i] for i in order], sent[order]
    column, answered = _columns(name, seen, fewest)
    turns = sessions = _sessions(seen) if any(s.session for s in seen) else None
    if sessions is None and kind == "open":
        kind, clients, turns = _clients(seen, sent, column, clients, said)
    if not (shared := any(s.content for s in seen)):
        said += _shared_unsaid(sessions, column["cached_tokens"])
    experiment = Experiment(
        name=name,
        kind="sessions" if sessions is not None else kind,
        arrival_s=sent - sent[0],
        prompt_tokens=np.array([s.prompt_tokens for s in seen], dtype=np.int64),
        output_tokens=np.array([s.output_tokens for s in seen], dtype=np.int64),
        ttft_s=column["ttft_s"],
        e2el_s=column["e2el_s"],
        cached_tokens=column["cached_tokens"] if np.isfinite(column["cached_tokens"]).any() else None,
        session=turns,
        clients=clients if kind == "closed" else 0,
        content=tuple(s.content for s in seen) if shared else (),
        token_s=_streams(seen, sent - sent[0]) if kind != "closed" or turns is not None else None,
        stated=stated,
        text=True,  # benchmarks send texts, and users do
    )
    return ServedLog(experiment, answered, np.where(answered, np.nan, column["waited_s"]), source, tuple(said), model_id)


def _placed(count: int, rate_per_s: float, burstiness: float, clients: int, said: list[str]) -> tuple[Array, str]:
    """(sending times [request] of a log without them, s, kind of load); how they were found is added to what is `said`."""
    if math.isfinite(rate_per_s):
        said.append(f"no sending times: drawn anew at {rate_per_s:g} requests/s, so single requests cannot be compared")
        if clients:
            said.append(f"its limit of {clients} in flight is not replayed beside a rate")
        gaps: Array = np.random.default_rng([0, 80]).gamma(burstiness, 1 / (rate_per_s * burstiness), count)
        placed: Array = np.cumsum(gaps) - gaps[0]
        return placed, "open"
    known = f"no sending times: replayed as a closed loop of {clients} clients"
    said.append(known if clients else "no sending times and no rate: all sent at once")
    return np.arange(count, dtype=np.float64) * 1e-6, "closed" if clients else "open"


def _shared_unsaid(sessions: NDArray[np.int64] | None, cached: Array) -> list[str]:
    """What was cached though nothing says what prompts share."""
    if sessions is None:
        if not np.nansum(cached) > 0:
            return []
        return ["tokens were cached, and no session, system_prompt or prefix_ids says what prompts share: simulated as if nothing"]
    if not _cached_at_first(sessions, cached):
        return []
    return ["first requests of sessions had cached tokens, and no system_prompt says what they share: simulated as if nothing"]


def joined(logs: Sequence[ServedLog]) -> ServedLog:
    """Several logs of one server as one: requests end to end, PAUSE_S apart, and replayed load by load."""
    first = logs[0]
    if len(logs) == 1:
        return first
    loads, begins, end = [load for log in logs for load in log.loads], [], 0.0
    for load in loads:
        begins.append(end)
        end += float(np.nanmax(load.arrival_s + np.nan_to_num(load.e2el_s))) + PAUSE_S
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(load, name) for load in loads]) for name in ("prompt_tokens", "output_tokens", "ttft_s", "e2el_s")
    }
    sent = np.concatenate([begin + load.arrival_s for begin, load in zip(begins, loads, strict=True)])
    return ServedLog(
        Experiment(f"{len(loads)} loads", "open", sent, **columns, text=first.experiment.text),
        np.concatenate([log.answered for log in logs]),
        np.concatenate([log.waited_s for log in logs]),
        first.source,
        tuple(dict.fromkeys(note for log in logs for note in log.notes)),
        first.model_id,
        tuple(loads),
    )


def _streams(seen: Sequence[LoggedRequest], sent: Array) -> tuple[Array, ...] | None:
    """Token times of each request, from the first sending on; None where the log does not say that of all answers."""
    if any(math.isnan(s.sent_s) or not (s.token_s or math.isfinite(s.waited_s)) for s in seen):
        return None
    return tuple(at + np.array(s.token_s) for at, s in zip(sent, seen, strict=True))


def _assumed(s: LoggedRequest, tokens: int) -> Content:
    return SystemPrompt("assumed", min(tokens, s.prompt_tokens))


def _columns(name: str, seen: Sequence[LoggedRequest], fewest: int) -> tuple[dict[str, Array], NDArray[np.bool_]]:
    """Columns [request] of what is measured, and which requests were answered: `fewest` at least."""
    column = {n: np.array([getattr(s, n) for s in seen], dtype=float) for n in ("ttft_s", "e2el_s", "waited_s", "cached_tokens")}
    answered = np.isfinite(column["e2el_s"])
    if answered.sum() < fewest:
        raise UsageError(f"{name}: {int(answered.sum())} answered requests are too few to learn from: at least {fewest} are needed")
    return column, answered


def _clients(
    seen: Sequence[LoggedRequest], sent: Array, column: Mapping[str, Array], clients: int, said: list[str]
) -> tuple[str, int, NDArray[np.int64] | None]:
    """(kind, clients, client of each request) of requests with sending times: as the log names them, or as a limit that held them back."""
    if any(s.client for s in seen):
        found = numbered([s.client for s in seen])
        return "closed", len(set(found.tolist()) - {-1}), found
    if not clients:
        return "open", 0, None
    ends = ends_of(sent, column["e2el_s"], column["waited_s"])
    if not binds(clients, in_flight_at_sending(sent, ends)):
        said.append(f"a limit of {clients} in flight, which was not kept full: sent when they were sent")
        return "open", 0, None
    said.append(f"{clients} in flight throughout: replayed as a closed loop of {clients} clients")
    return "closed", clients, clients_of(sent, ends, clients)


def _cached_at_first(sessions: NDArray[np.int64], cached: Array) -> bool:
    """Whether the first request of a session reused tokens."""
    _, first = np.unique(sessions, return_index=True)
    return bool(np.nansum(cached[first[sessions[first] >= 0]]) > 0)


def _sessions(seen: Sequence[LoggedRequest]) -> NDArray[np.int64]:
    """Session of each request, -1 for none. UsageError where a later request cannot have waited for its last answer."""
    numbers: dict[str, int] = {}
    back: dict[str, float] = {}
    for s in seen:
        if not s.session:
            continue
        numbers.setdefault(s.session, len(numbers))
        if not math.isfinite(s.e2el_s):
            raise UsageError(f"{s.where}: session {s.session[:40]!r} gave up: what came after an unknown answer cannot be replayed")
        if s.sent_s < back.get(s.session, -math.inf):
            raise UsageError(f"{s.where}: session {s.session[:40]!r} sends this before its last answer came back")
        back[s.session] = s.sent_s + s.e2el_s
    return np.array([numbers.get(s.session, -1) for s in seen], dtype=np.int64)


def number(where: str, name: str, value: Any) -> float:
    """A JSON value as a float. Raises UsageError naming the field where it is missing or no number."""
    if value is None:
        raise UsageError(f"{where}: lacks {name}")
    return lines.number(value, name, where)


def count(where: str, name: str, value: Any) -> int:
    """A JSON value as a whole number, at least 0. Raises UsageError naming the field."""
    found = number(where, name, value)
    if not 0 <= found < math.inf:
        raise UsageError(f"{where}: {name} must be a finite number of at least 0, got {found:g}")
    return int(found)


def with_typical_output(seen: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """Requests that were given up, with the median output of those that were answered: what they asked for is not in the log."""
    typical = median_high([s.output_tokens for s in seen if not math.isfinite(s.waited_s)] or [1])
    return [replace(s, output_tokens=max(s.output_tokens, typical)) if math.isfinite(s.waited_s) else s for s in seen]


def failures(failed: int, timeout_s: float | None) -> list[str]:
    """Note on requests that failed."""
    if not failed:
        return []
    if timeout_s is not None:
        return [f"{failed} requests failed; those without an end of their own count as given up after {timeout_s:g} s"]
    return [f"{failed} requests failed; those whose wait the file does not tell are left out (timeout=S censors them)"]


def first_of(where: str, row: Mapping[str, Any], names: Sequence[str]) -> float:
    """The first of several names a field has had in a tool's versions. Raises UsageError naming all of them."""
    for name in names:
        if row.get(name) is not None:
            return number(where, name, row[name])
    raise UsageError(f"{where}: lacks {' or '.join(names)}")
