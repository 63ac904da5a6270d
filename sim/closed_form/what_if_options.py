"""Options of a what-if answer, one policy at one batch each: figures with intervals, plain data, and the recommendation among them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sim.quantiles import quantiles
from sim.specs.attention_policy import AttentionPolicy


@dataclass(frozen=True, slots=True)
class Interval:
    """A point value (at the median rates) and the 5-95 % interval over the draws."""

    point: float
    low: float
    high: float


def interval(point: float, draws: Any) -> Interval:
    """The 5-95 % interval of an array of draws around a point value."""
    return Interval(float(point), *quantiles(np.asarray(draws), (0.05, 0.95)))


@dataclass(frozen=True, slots=True)
class Option:
    """One policy at one batch. Times are per decode step; `hbm_bytes` and `host_bytes` are per GPU, all sequences and weights included."""

    policy: AttentionPolicy
    stack: str  # that runs it
    batch: int
    feasible: bool
    reason: str
    hbm_bytes: float
    host_bytes: float
    n_max: float
    step_s: Interval
    step_s_rates: Interval  # over the rates only, differences between hosts among them; the rest of `step_s` is the residual of one run
    tokens_per_s: Interval  # per sequence
    speedup: Interval | None  # over the best feasible dense
    binding: str
    terms_s: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "stack": self.stack,
            "policy": self.policy.kind,
            "k": self.policy.k or None,
            "kv_in": self.policy.placement,
            "keep_tokens": self.policy.keep_tokens,
            "batch": self.batch,
            "feasible": self.feasible,
            "reason": self.reason,
            "hbm_bytes": self.hbm_bytes,
            "host_bytes": self.host_bytes,
            "n_max": self.n_max,
            "step_s": asdict(self.step_s),
            "step_s_rates_only": asdict(self.step_s_rates),
            "tokens_per_s_per_sequence": asdict(self.tokens_per_s),
            "tokens_per_s_total": self.tokens_per_s.point * self.batch,
            "speedup_over_best_feasible_dense": asdict(self.speedup) if self.speedup else None,
            "binding_term": self.binding,
            "terms_s": self.terms_s,
        }


def best_option(options: list[Option]) -> dict[str, Any] | None:
    """The fastest option that fits and can retrieve from the whole context."""
    able = [o for o in options if o.feasible and o.policy.kind != "sink-window"]
    if not able:
        return None
    o = min(able, key=lambda option: option.step_s.point)
    rate = o.tokens_per_s
    return {"attention": o.policy.label, "tok_s": rate.point, "tok_s_p05": rate.low, "tok_s_p95": rate.high, "binds": o.binding}
