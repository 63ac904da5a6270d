"""What the serving process around the engine costs: the API server's share of TTFT, which no GPU rate explains.

Declared priors until served runs have been fitted: at low load, engines on H100-class hosts show 5 to 8 ms of TTFT beyond the prefill
iteration itself, of which tokenising is about a microsecond a token.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sim.engine.boost import NO_BOOST, Boost
from sim.engine.overlap import NO_WORK, HostWork
from sim.errors import UsageError

UNITS = {
    "request_s": "s per request: receive, parse, template, hand to the engine",
    "serial_s": "s of the API server's own time per request: requests that come together share it",
    "prompt_token_s": "s per prompt token: tokenise",
    "response_s": "s per token sent, as latency: detokenise, stream",
    "token_s": "s of the API server's own time per token sent: those of an iteration go out one after another",
}


@dataclass(frozen=True, slots=True)
class HostRates:
    """Host latencies in seconds. All delay a request before its engine sees it, or its tokens on their way out; only `serial_s` also
    occupies requests: an API server is one process that turns to all its requests by turns. It sends the tokens of an iteration in the
    engine's order, those of new requests last, so a first token waits for the tokens of all that decode beside it. That the server
    reads requests more slowly while it sends tokens is left out.
    """

    request_s: float = 4e-3
    prompt_token_s: float = 1e-6
    response_s: float = 1e-3
    serial_s: float = 1e-3
    basis: str = "declared prior"
    token_s: float = 0.0  # nothing is declared of a host that nobody has seen sending
    work: HostWork = NO_WORK  # of the engine itself, per iteration: what the rates leave out because it can hide behind the GPU
    boost: Boost = NO_BOOST  # of the GPU, where rates were learnt from one that had no rest

    def __post_init__(self) -> None:
        for name in UNITS:
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise UsageError(f"host {name} must be a finite time >= 0, got {value:g} s")

    def before_s(self, prompt_tokens: float) -> float:
        """Seconds from a client sending a request to its engine having it, the API server's own time left out."""
        return self.request_s + prompt_tokens * self.prompt_token_s

    def after_s(self, place: Any) -> Any:
        """Seconds from the end of an iteration to the client having the token at this place (0 the first; a number or an array) of it."""
        return self.response_s + place * self.token_s


NO_HOST = HostRates(0.0, 0.0, 0.0, 0.0, "none: the engine alone")


class SharedServer:
    """A processor that shares itself equally among its jobs, all of `work` ticks: with n of them each takes n times as long.

    Jobs leave in order of arrival. Times are ticks; the caller lets arrivals and departures happen in order of time, a departure first.
    """

    def __init__(self, work: int) -> None:
        self._work = work
        self._given = 0.0  # ticks of service that every job present has had since the server was last empty
        self._leaves: deque[float] = deque()  # what `given` will be when each job leaves
        self._since = 0

    def arrive(self, now: int) -> None:
        """A job comes."""
        self._advance(now)
        self._leaves.append(self._given + self._work)

    def next_departure(self) -> int | None:
        """When the next job leaves if none arrives before; None when there is none."""
        if not self._leaves:
            return None
        return self._since + math.ceil(max(self._leaves[0] - self._given, 0.0) * len(self._leaves))

    def depart(self, now: int) -> None:
        """The next job leaves, at the time that `next_departure` says."""
        self._advance(now)
        self._leaves.popleft()

    def _advance(self, now: int) -> None:
        if self._leaves:
            self._given += (now - self._since) / len(self._leaves)
        else:
            self._given = 0.0
        self._since = now


def departures(arrivals: Sequence[int], work: int) -> list[int]:
    """When each of the jobs that arrive at these ticks (in order) leaves a SharedServer."""
    server, left = SharedServer(work), []
    for arrival in [*arrivals, None]:
        while (leaves := server.next_departure()) is not None and (arrival is None or leaves <= arrival):
            server.depart(leaves)
            left.append(leaves)
        if arrival is not None:
            server.arrive(arrival)
    return left
