"""What the serving process around the engine costs: the API server's share of TTFT, which no GPU rate explains.

Declared priors until served runs have been fitted: at low load, engines on H100-class hosts show 5 to 8 ms of TTFT beyond the prefill
iteration itself, of which tokenising is about a microsecond a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sim.engine.overlap import NO_WORK, HostWork
from sim.errors import UsageError

UNITS = {
    "request_s": "s per request: receive, parse, template, hand to the engine",
    "prompt_token_s": "s per prompt token: tokenise",
    "response_s": "s per token sent, as latency: detokenise, stream",
}


@dataclass(frozen=True, slots=True)
class HostRates:
    """Host latencies in seconds. They delay a request before its engine sees it and its tokens on their way out, and occupy nothing."""

    request_s: float = 5e-3
    prompt_token_s: float = 1e-6
    response_s: float = 1e-3
    basis: str = "declared prior"
    work: HostWork = NO_WORK  # of the engine itself, per iteration: what the rates leave out because it can hide behind the GPU

    def __post_init__(self) -> None:
        for name in UNITS:
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise UsageError(f"host {name} must be a finite time >= 0, got {value:g} s")

    def before_s(self, prompt_tokens: float) -> float:
        """Seconds from a client sending a request to its engine having it."""
        return self.request_s + prompt_tokens * self.prompt_token_s


NO_HOST = HostRates(0.0, 0.0, 0.0, "none: the engine alone")
