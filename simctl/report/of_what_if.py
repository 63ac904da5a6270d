"""Picture of a what-if: tokens per second of one user over the context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from sim.closed_form.what_if import WhatIf, policies, step_seconds
from sim.specs.attention_policy import AttentionPolicy
from sim.units import format_tokens
from simctl.report import charts
from simctl.report.page import Picture, number, span

if TYPE_CHECKING:
    from sim import RateDraws

SHORTEST, LONGEST, POINTS = 2**12, 2**20, 33  # contexts, tokens


def picture(q: WhatIf, rates: RateDraws) -> Picture:
    """Tok/s of one user over the context, for dense and block-128 attention at the first batch, with bands of 90 % of the draws."""
    d, batch, settled = q.deployment, q.batches[0], q.settled(rates)
    rows = [row for policy in _policies(settled) for row in _rows(settled, policy, rates)]
    names = list(dict.fromkeys(row["series"] for row in rows))
    here = [f"{row['series']} {number(row['y'])} ({span(row['low'], row['high'])})" for row in rows if row["x"] == q.context]
    lost = "" if len(here) == len(names) else " A line ends where its KV cache no longer fits."
    at = f"At {format_tokens(q.context)}: {', '.join(here)} tokens/s (90 % of the draws)." if here else "None fits the context asked for."
    x = charts.axis("context (tokens), log scale", [row["x"] for row in rows]) | {"scale": {"type": "log", "base": 2, "nice": False}}
    x["axis"] = {"values": [2**e for e in range(12, 31, 2)], "labelExpr": "datum.value >= 1048576 ? datum.value / 1048576 + 'M' : "
                 "datum.value / 1024 + 'K'"}  # fmt: skip
    y = charts.axis("tokens/s of one user, log scale", [row[edge] for row in rows for edge in ("low", "high")])
    where = f"{d.model.name} on {d.gpu.name}, {q.runner.name}, batch {batch}"
    return Picture("tokens_over_context", f"How fast does one user decode? {where}", f"{at}{lost}", charts.lines(rows, x, y, names))


def _policies(q: WhatIf) -> Iterator[AttentionPolicy]:
    for policy in map(q.runner.policy, policies((max(q.budgets),))):
        beyond = policy.placement == "host" and q.deployment.gpu.unified_memory
        if policy.kind in ("dense", "blocks") and not q.runner.lacks(policy) and not beyond:
            yield policy


def _rows(q: WhatIf, policy: AttentionPolicy, rates: RateDraws) -> Iterator[charts.Row]:
    """A row for every context whose KV cache fits."""
    d, batch = q.deployment, q.batches[0]
    free = d.memory().free
    for context in np.unique(np.append(np.geomspace(SHORTEST, max(LONGEST, q.context), POINTS), q.context)).tolist():
        if batch * d.request_bytes(int(context), policy)[0] <= free:
            low, high = np.quantile(1 / step_seconds(q, policy, float(batch), context, rates.draws, np), (0.05, 0.95))
            middle = 1 / step_seconds(q, policy, float(batch), context, rates.point)
            yield {"x": context, "y": float(middle), "low": float(low), "high": float(high), "series": policy.label}
