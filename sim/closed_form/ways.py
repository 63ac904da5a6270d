"""Ways to serve a batch of long contexts: all at once, fewer at a time with the rest queueing, or with a setting that costs nothing.

Before a lossy method is advised, what loses nothing is tried; of two ways the one with more tokens per second in all leads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.closed_form.fidelity import advice
from sim.closed_form.what_if_options import Interval, Option, interval
from sim.cost.graphs import CAPTURED
from sim.cost.rates import RateDraws
from sim.cost.step_time import step_time_s
from sim.deployment.memory import Memory, n_max
from sim.specs.attention_policy import AttentionPolicy, dense
from sim.units import about_tokens, format_bytes, format_tokens

if TYPE_CHECKING:
    from sim.closed_form.what_if import WhatIf

GRAPHS = 3  # captured sizes below a batch that are tried in its place
MOST_SHARE = 0.95  # of device memory that an engine can be given without running out of it in other ways


@dataclass(frozen=True, slots=True)
class Way:
    """`batch` sequences at a time under a policy, with what is `set` for it; `total` is tok/s of all of them."""

    policy: AttentionPolicy
    batch: int
    wanted: int
    set: str
    tokens_per_s: Interval  # of each that is being served
    draws: Any  # [draw] tok/s in all

    @property
    def lossless(self) -> bool:
        return self.policy.kind == "dense"

    @property
    def total(self) -> float:
        """Tok/s of all sequences."""
        return self.batch * self.tokens_per_s.point

    @property
    def label(self) -> str:
        """Policy, and what is to be set, in words."""
        return self.policy.label + (f" with {self.set}" if self.set else "")

    def speed(self) -> str:
        """Tok/s per sequence, of a batch in all, and how many wait."""
        each = f"{_short(self.tokens_per_s)} tok/s per sequence"
        whole = f", {self.total:.3g} in all" if self.batch > 1 else ""
        waits = f" at {self.batch} at a time, the rest queueing" if self.batch < self.wanted else ""
        return f"{each}{whole}{waits}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "attention": self.policy.label, "batch": self.batch, "set": self.set, "tokens_per_s_per_sequence": self.tokens_per_s.point,
            "tokens_per_s_total": self.total,
        }  # fmt: skip


def ways(q: WhatIf, batch: int, memory: Memory, rates: RateDraws) -> list[Way]:
    """Every way to decode `batch` sequences of the question on its stack, most tokens per second first. The ends of the context are left
    out: what lies between them cannot be retrieved.
    """
    from sim.closed_form.what_if import policies

    found = []
    for policy in map(q.runner.policy, policies(q.budgets)):
        hbm, host = q.deployment.request_bytes(q.context, policy)
        no_tier = policy.placement == "host" and (q.deployment.gpu.unified_memory or not host)
        if policy.kind == "sink-window" or q.runner.lacks(policy) or no_tier:
            continue
        fit = n_max(memory, hbm)
        at_once = min(batch, int(min(fit, batch)))
        # a batch that fills a captured graph may serve more than a larger one that is padded up to the next
        sizes = {at_once, *[size for size in CAPTURED if size < at_once][-GRAPHS:]} - {0}
        if sizes:
            served = {size: size / float(step_time_s(q.work(float(size), float(q.context), policy), rates.point)) for size in sizes}
            found.append(_way(q, policy, max(sizes, key=lambda size: (served[size], size)), batch, "", rates))
        share = _share_for(q, memory, batch * hbm)
        if at_once < batch and policy.placement == "hbm" and share is not None:
            found.append(_way(q, policy, batch, batch, f"--gpu-memory-utilization {share:.2f}", rates))
    return sorted(found, key=lambda way: -way.total)


def _share_for(q: WhatIf, memory: Memory, kv_bytes: float) -> float | None:
    """The share of memory, in hundredths, that holds so much KV; None beyond MOST_SHARE."""
    share = math.ceil(100.0 * (memory.weights + memory.activations + kv_bytes) / q.deployment.gpu.memory_bytes) / 100.0
    return share if q.deployment.limits.memory_share < share <= MOST_SHARE else None


def _way(q: WhatIf, policy: AttentionPolicy, batch: int, wanted: int, setting: str, rates: RateDraws) -> Way:
    work = q.work(float(batch), float(q.context), policy)
    draws = 1.0 / np.asarray(step_time_s(work, rates.draws, np))
    return Way(policy, batch, wanted, setting, interval(1.0 / float(step_time_s(work, rates.point)), draws), batch * draws)


def recommend(
    q: WhatIf, options: Sequence[Option], memory: Memory, rates: RateDraws, crossovers: dict[tuple[int, int], float | None], misfit: Any
) -> tuple[str, int, list[Way]]:
    """Plain words for one batch, the selection budget they speak of, and the ways they were chosen among, the best first. `misfit` is the
    factor between dense and selecting steps by draw.
    """
    batch, d = options[0].batch, q.deployment
    where = f"at {format_tokens(q.context)} batch {batch}"
    every = ways(q, batch, memory, rates)
    if not every:
        smallest = min((o for o in options if not q.runner.lacks(o.policy)), key=lambda o: o.hbm_bytes)
        text = (
            f"{where} nothing fits: even {smallest.policy.label} needs {format_bytes(smallest.hbm_bytes)} of "
            f"{format_bytes(memory.allowed)} usable per GPU. {_remedies(q, batch)}"
        )
        return text, 0, every
    kept, lossy = ([way for way in every if way.lossless is lossless] for lossless in (True, False))
    base, best = next(iter(kept), None), next((way for way in lossy if way.policy.kind == "blocks"), None)
    if best is None or (base is not None and base.total >= best.total):
        leader = base or every[0]
        text = f"{where} {leader.label} gives {leader.speed()}."
        if best is None:
            return f"{text}{_of_more_gpus(q, leader)}", leader.policy.k, every
        crossing = crossovers.get((best.policy.k, batch))
        until = f"; it pays from about {about_tokens(crossing)} tokens" if crossing and crossing > q.context else ""
        verb = f"would run at {best.total / leader.total:.2f}x of that"
        return f"{text} Leave sparse attention off: {best.label} {verb}{until}.", best.policy.k, [leader, *every]
    verdict, recall = advice(best.policy.k, q.context, d.model.name)
    if base is None:
        return f"{where} dense attention does not fit; {best.label} gives {best.speed()}. {recall}", best.policy.k, [best, *every]
    # among budgets that cost at most a quarter of the gain, the largest keeps most of what matters
    enough = base.total + 0.75 * (best.total - base.total)
    safest = max((way for way in lossy if way.policy.kind == "blocks" and way.total >= enough), key=lambda way: (way.policy.k, way.total))
    gain = interval(safest.total / base.total, safest.draws / base.draws * misfit)
    verdict, recall = advice(safest.policy.k, q.context, d.model.name)
    doubt = "" if gain.low > 1 else " (the interval includes no gain at all)"
    beside = base.policy.label if base.set and base.set == safest.set else base.label
    text = (
        f"{where} {verdict}: {safest.label} gives {safest.speed()}, {gain.point:.3g}x [{gain.low:.3g}-{gain.high:.3g}] of "
        f"{beside} ({base.tokens_per_s.point:.3g} tok/s{f', {base.total:.3g} in all' if base.batch > 1 else ''}){doubt}. {recall}"
    )
    return text, safest.policy.k, [safest, *every]


def _remedies(q: WhatIf, batch: int) -> str:
    """What would make the batch fit: KV in 8 bits, more GPUs."""
    found = [text for text in (_narrower(q, batch), _more_gpus(q, batch)) if text]
    return (
        f"It fits with {' or '.join(found)}." if found else "Take a larger GPU, more of them (--tp), a narrower dtype or a smaller batch."
    )


def _narrower(q: WhatIf, batch: int) -> str:
    d = q.deployment
    if d.precision.kv not in ("bf16", "fp16"):
        return ""
    narrow = replace(d, precision=replace(d.precision, kv="fp8"))
    return "--kv-dtype fp8" if _fits(replace(q, deployment=narrow), batch) else ""


def _more_gpus(q: WhatIf, batch: int) -> str:
    from sim.errors import UsageError

    for tp in (2, 4, 8):
        if tp > q.deployment.tp:
            try:
                if _fits(replace(q, deployment=replace(q.deployment, tp=tp)), batch):
                    return f"--tp {tp}"
            except UsageError:
                continue
    return ""


def _fits(q: WhatIf, batch: int) -> bool:
    return n_max(q.deployment.memory(), q.deployment.request_bytes(q.context, dense())[0]) >= batch


def _of_more_gpus(q: WhatIf, leader: Way) -> str:
    """What would hold the whole batch, where part of it queues."""
    if leader.batch == leader.wanted:
        return ""
    found = [text for text in (_narrower(q, leader.wanted), _more_gpus(q, leader.wanted)) if text]
    return f" All {leader.wanted} fit at once with {' or '.join(found)}." if found else ""


def _short(i: Interval) -> str:
    return f"{i.point:.3g} [{i.low:.3g}-{i.high:.3g}]"
