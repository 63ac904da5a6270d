"""Requests of a served log in one form: in order of sending, with what came back and, of those that got nothing, how long they waited."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.served.runs import MOST_TOKENS, Experiment, ServedRun
from sim.errors import UsageError
from sim.study.deployment import Deployment
from sim.workload import lines
from sim.workload.content import Content

Array = NDArray[np.float64]
FEWEST = 10
LONGEST_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Seen:
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
    content: Content | None = None

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
class Log:
    """A log as an experiment to replay: all requests that were sent with known lengths. `answered` [request] marks those with times.

    `waited_s` [request] is finite for those given up. `notes` say in words what was left out or assumed.
    """

    experiment: Experiment
    answered: NDArray[np.bool_]
    waited_s: Array
    source: str
    notes: tuple[str, ...] = field(default=())

    def served_by(self, d: Deployment, name: str) -> ServedRun:
        """The log as a served run of a deployment."""
        engine = f"{self.source} of {d.limits.engine}"
        return ServedRun(name, d.gpu, d.model, d.precision, d.limits, d.tp, engine, (self.experiment,), self.notes)


def assemble(
    seen: Sequence[Seen],
    *,
    name: str,
    source: str,
    notes: Sequence[str] = (),
    rate_per_s: float = math.inf,
    burstiness: float = 1.0,
    clients: int = 0,
) -> Log:
    """Sort, check and, where the log does not say when requests were sent, place them.

    Without sending times a finite rate is drawn anew (gamma gaps of that burstiness, another draw than the run's own), a number of clients
    is replayed as a closed loop, and neither means all at once. Raises UsageError when too few requests were answered.
    """
    said, kind, rate_known = list(notes), "open", math.isfinite(rate_per_s)
    sent = np.array([s.sent_s for s in seen])
    if np.isnan(sent).any():
        sent = np.arange(len(seen)) * 1e-6
        if rate_known:
            gaps = np.random.default_rng([0, 80]).gamma(burstiness, 1 / (rate_per_s * burstiness), len(seen))
            sent = np.cumsum(gaps) - gaps[0]
            said.append(f"no sending times: drawn anew at {rate_per_s:g} requests/s, so single requests cannot be compared")
        elif clients:
            kind = "closed"
            said.append(f"no sending times: replayed as a closed loop of {clients} clients")
        else:
            said.append("no sending times and no rate: all sent at once")
    order = np.argsort(sent, kind="stable")
    seen, sent = [seen[i] for i in order], sent[order]
    column = {n: np.array([getattr(s, n) for s in seen], dtype=float) for n in ("ttft_s", "e2el_s", "waited_s", "cached_tokens")}
    answered = np.isfinite(column["e2el_s"])
    if answered.sum() < FEWEST:
        raise UsageError(f"{name}: {int(answered.sum())} answered requests are too few to learn from: at least {FEWEST} are needed")
    sessions = _sessions(seen) if any(s.session for s in seen) else None
    shared = any(s.content for s in seen)
    if np.nansum(column["cached_tokens"]) > 0 and sessions is None and not shared:
        said.append("tokens were cached, and no session, system_prompt or prefix_ids says what prompts share: simulated as if nothing")
    elif sessions is not None and not shared and _cached_at_first(sessions, column["cached_tokens"]):
        said.append("first requests of sessions had cached tokens, and no system_prompt says what they share: simulated as if nothing")
    experiment = Experiment(
        name=name,
        kind=kind if sessions is None else "sessions",
        arrival_s=sent - sent[0],
        prompt_tokens=np.array([s.prompt_tokens for s in seen], dtype=np.int64),
        output_tokens=np.array([s.output_tokens for s in seen], dtype=np.int64),
        ttft_s=column["ttft_s"],
        e2el_s=column["e2el_s"],
        cached_tokens=column["cached_tokens"] if np.isfinite(column["cached_tokens"]).any() else None,
        session=sessions,
        clients=clients if kind == "closed" else 0,
        content=tuple(s.content for s in seen) if shared else (),
    )
    return Log(experiment, answered, np.where(answered, np.nan, column["waited_s"]), source, tuple(said))


def _cached_at_first(sessions: NDArray[np.int64], cached: Array) -> bool:
    """Whether the first request of a session reused tokens."""
    _, first = np.unique(sessions, return_index=True)
    return bool(np.nansum(cached[first[sessions[first] >= 0]]) > 0)


def _sessions(seen: Sequence[Seen]) -> NDArray[np.int64]:
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


def first_of(where: str, row: Mapping[str, Any], names: Sequence[str]) -> float:
    """The first of several names a field has had in a tool's versions. Raises UsageError naming all of them."""
    for name in names:
        if row.get(name) is not None:
            return number(where, name, row[name])
    raise UsageError(f"{where}: lacks {' or '.join(names)}")
