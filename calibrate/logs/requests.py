"""One form for every log: requests in order of sending, with what came back and, of those that got nothing, how long they waited."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.served.runs import MOST_TOKENS, Experiment
from sim.errors import UsageError

Array = NDArray[np.float64]
FEWEST = 20
LONGEST_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One request. Times in seconds; `sent_s` on the log's own clock, NaN where the log does not say.

    `waited_s` is set for a request that was given up after that long: its answer would have taken longer.
    """

    sent_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_s: float = math.nan
    e2el_s: float = math.nan
    waited_s: float = math.nan


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


def assemble(
    seen: Sequence[Seen],
    *,
    name: str,
    source: str,
    notes: Sequence[str] = (),
    rate_per_s: float = math.inf,
    burstiness: float = 1.0,
    clients: int = 0,
    seed: int = 0,
) -> Log:
    """Sort, check and, where the log does not say when requests were sent, place them.

    Without sending times a finite rate is drawn anew (gamma gaps of that burstiness, another draw than the run's own), a number of clients
    is replayed as a closed loop, and neither means all at once. Raises UsageError when too few requests were answered.
    """
    said = list(notes)
    kind = "open"
    sent = np.array([s.sent_s for s in seen])
    if np.isnan(sent).any():
        if clients and not math.isfinite(rate_per_s):
            kind, sent = "closed", np.arange(len(seen)) * 1e-6
            said.append(f"no sending times: replayed as a closed loop of {clients} clients")
        elif math.isfinite(rate_per_s):
            gaps = np.random.default_rng([seed, 80]).gamma(burstiness, 1 / (rate_per_s * burstiness), len(seen))
            sent = np.cumsum(gaps) - gaps[0]
            said.append(f"no sending times: drawn anew at {rate_per_s:g} requests/s, so single requests cannot be compared")
        else:
            sent = np.arange(len(seen)) * 1e-6
            said.append("no sending times and no rate: all sent at once")
    order = np.argsort(sent, kind="stable")
    seen = [seen[i] for i in order]
    sent = sent[order] - sent[order[0]] if len(seen) else sent
    answered = np.array([math.isfinite(s.e2el_s) for s in seen], dtype=bool)
    waited = np.array([s.waited_s for s in seen], dtype=float)
    if answered.sum() < FEWEST:
        raise UsageError(f"{name}: {int(answered.sum())} answered requests are too few to learn from: at least {FEWEST} are needed")
    if np.ptp([s.e2el_s for s in seen if math.isfinite(s.e2el_s)]) == 0:
        raise UsageError(f"{name}: every request took exactly as long as every other: zero variance, nothing to learn from")
    experiment = Experiment(
        name=name,
        kind=kind,
        arrival_s=sent,
        prompt_tokens=np.array([s.prompt_tokens for s in seen], dtype=np.int64),
        output_tokens=np.array([s.output_tokens for s in seen], dtype=np.int64),
        ttft_s=np.array([s.ttft_s for s in seen]),
        e2el_s=np.array([s.e2el_s for s in seen]),
        clients=clients if kind == "closed" else 0,
    )
    return Log(experiment, answered, np.where(answered, np.nan, waited), source, tuple(said))


def checked(where: str, seen: Seen) -> Seen:
    """The request, if it can be one. Raises UsageError that begins with `where` (file and request)."""
    if seen.sent_s < 0:
        raise UsageError(f"{where}: was sent at {seen.sent_s:g} s: negative")
    for name in ("prompt_tokens", "output_tokens"):
        if not 1 <= getattr(seen, name) <= MOST_TOKENS:
            raise UsageError(f"{where}: {name} must be at least 1 and a number that a request can have, got {getattr(seen, name):.6g}")
    if math.isfinite(seen.waited_s):
        if not 0 < seen.waited_s <= LONGEST_S:
            raise UsageError(f"{where}: was given up after {seen.waited_s:g} s: not a wait of 0 to a day (wrong unit?)")
        return seen
    for name in ("ttft_s", "e2el_s"):
        value = getattr(seen, name)
        if not math.isfinite(value):
            raise UsageError(f"{where}: {name} is not a number")
        if not 0 < value <= LONGEST_S:
            raise UsageError(f"{where}: {name} is {value:g} s: not in 0 to a day (negative, or another unit?)")
    if seen.ttft_s > seen.e2el_s * (1 + 1e-9):
        raise UsageError(f"{where}: its first token ({seen.ttft_s:g} s) came after its last ({seen.e2el_s:g} s)")
    return seen


def number(where: str, name: str, value: Any) -> float:
    """A JSON value as a float. Raises UsageError naming the field where it is missing or no number."""
    if value is None:
        raise UsageError(f"{where}: lacks {name}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{where}: {name} must be a number, got {str(value)[:40]!r}")
    return float(value)


def first_of(where: str, row: Mapping[str, Any], names: Sequence[str]) -> float:
    """The first of several names a field has had in a tool's versions. Raises UsageError naming all of them."""
    for name in names:
        if row.get(name) is not None:
            return number(where, name, row[name])
    raise UsageError(f"{where}: lacks {' or '.join(names)}")
