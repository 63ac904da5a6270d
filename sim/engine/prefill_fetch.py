"""Prefill of KV that lives in host RAM: what a chunk reads of the tokens before it crosses the host link, as a decode's does."""

from __future__ import annotations

from sim.bill import Bill, Coefficients, Shape
from sim.policy import AttentionPolicy


def prefill_read_where_it_lives(bill: Bill, shape: Shape, c: Coefficients, policy: AttentionPolicy) -> Bill:
    """`bill` of an iteration of `shape` (floats), the KV of its chunks' earlier tokens fetched from host RAM where `policy` keeps it there.

    A chunk's own tokens are read where they were just computed. Prefill attends to everything, so a layer's KV is known before its query
    and may come while the layer before computes: that share of the link's bytes hides as dense streaming does. What prefill writes goes
    the link's other way, and is not counted, like a decode's.
    """
    fetched = (shape.prefill_context - shape.prefill_tokens) * c.kv_token_bytes
    if policy.placement != "host" or fetched <= 0.0:
        return bill
    total = bill.link_bytes + fetched
    return bill._replace(
        prefill_kv_bytes=bill.prefill_kv_bytes - fetched,
        link_bytes=total,
        link_overlap=(bill.link_bytes * bill.link_overlap + fetched) / total,
    )
