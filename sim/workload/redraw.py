"""Another draw of a workload: of the same length or longer, or the part of it that one of many equal replicas gets in turn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.workload.agent_sessions import AgentMixture, AgentSessions
from sim.workload.rate_curve import RateCurve
from sim.workload.synthetic import Synthetic
from sim.workload.trace import Trace


@dataclass(frozen=True, slots=True)
class Redraw:
    """Draws requests of `spec` again; equal repeats and lengths give equal traces."""

    draw: Callable[[Any, np.random.Generator], Trace]
    spec: Synthetic | AgentSessions | AgentMixture
    seed: int

    def __call__(self, repeat: int, requests: int | None = None) -> Trace:
        """The draw numbered `repeat`, of so many requests or a few more (None: of as many as asked for)."""
        spec = self.spec
        if requests is not None and isinstance(spec, Synthetic):
            spec = replace(spec, num_prompts=spec.turns * math.ceil(requests / spec.turns))
        elif requests is not None and not isinstance(spec, Synthetic):
            spec = replace(spec, num_sessions=math.ceil(requests / spec.calls))
        return self.draw(spec, np.random.default_rng([self.seed, repeat + 1]))

    @property
    def rate_per_s(self) -> float:
        """Requests per second where they come at a constant mean rate, infinite where all come at once, else NaN."""
        rate = self.spec.rate_per_s
        return math.nan if isinstance(rate, RateCurve) else rate * self.spec.calls

    def of_one(self, replicas: int) -> Redraw | None:
        """Calls of one of `replicas` equal replicas under round-robin; None where calls depend on each other.

        Gaps are gamma with shape b; every k-th arrival then has gamma gaps with shape k b.
        """
        spec = self.spec
        if not isinstance(spec, Synthetic) or spec.turns > 1 or isinstance(spec.rate_per_s, RateCurve) or math.isinf(spec.rate_per_s):
            return None
        return replace(self, spec=replace(spec, rate_per_s=spec.rate_per_s / replicas, burstiness=spec.burstiness * replicas))
