"""Options of a what-if answer, one policy at one batch each: figures with intervals, plain data, and the recommendation among them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sim.closed_form.fidelity import advice
from sim.results.quantiles import quantiles
from sim.specs.attention_policy import AttentionPolicy
from sim.study.deployment import Deployment
from sim.units import about_tokens, format_bytes, format_tokens


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


def recommend(
    deployment: Deployment, context: int, options: list[Option], crossovers: dict[tuple[int, int], float | None]
) -> tuple[str, int]:
    """Plain words for one batch, and the selection budget they speak of. The ends alone are never recommended: what lies between them
    cannot be retrieved.
    """
    batch = options[0].batch
    where = f"at {format_tokens(context)} batch {batch}"
    able = [o for o in options if o.feasible and o.policy.kind != "sink-window"]
    if not able:
        smallest = min(options, key=lambda o: o.hbm_bytes)
        text = (
            f"{where} nothing fits: even {smallest.policy.label} needs {format_bytes(smallest.hbm_bytes)} of "
            f"{format_bytes(deployment.memory().allowed)} usable per GPU. "
            "Take a larger GPU, more of them (--tp), a narrower dtype or a smaller batch."
        )
        return text, 0
    base = min((o for o in able if o.policy.kind == "dense"), key=lambda o: o.step_s.point, default=None)
    chosen = [o for o in able if o.policy.kind == "blocks"]
    best = min(chosen, key=lambda o: o.step_s.point, default=None)
    if base is None:
        if best is None:
            return f"{where} only {able[0].policy.label} fits: {_speed(able[0])}.", able[0].policy.k
        return f"{where} dense attention does not fit; {best.policy.label} gives {_speed(best)}.", best.policy.k
    if best is None or best.speedup is None:
        return f"{where} {base.policy.label} gives {_speed(base)}.", 0
    if best.speedup.point <= 1.0:
        crossing = crossovers.get((best.policy.k, batch))
        until = f"; it pays from about {about_tokens(crossing)} tokens" if crossing else ""
        text = (
            f"{where} {base.policy.label} gives {_speed(base)}. Leave sparse attention off: {best.policy.label} would run at "
            f"{best.speedup.point:.2f}x of that{until}."
        )
        return text, best.policy.k
    # among budgets that cost at most a quarter of the gain, the largest keeps most of what matters
    safest = max((o for o in chosen if o.speedup and o.speedup.point - 1 >= 0.75 * (best.speedup.point - 1)), key=lambda o: o.policy.k)
    gain = safest.speedup or best.speedup
    doubt = "" if gain.low > 1 else " (the interval includes no gain at all)"
    verdict, recall = advice(safest.policy.k, context, deployment.model.name)
    text = (
        f"{where} {verdict}: {safest.policy.label} gives {_speed(safest)}, {gain.point:.3g}x [{gain.low:.3g}-{gain.high:.3g}] of "
        f"{base.policy.label} ({base.tokens_per_s.point:.3g} tok/s){doubt}. {recall}"
    )
    return text, safest.policy.k


def _speed(o: Option) -> str:
    rate = o.tokens_per_s
    return f"{rate.point:.3g} [{rate.low:.3g}-{rate.high:.3g}] tok/s per sequence"
