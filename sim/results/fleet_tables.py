"""Tables of a fleet: its replicas side by side, the router's ways of choosing, and how many requests waited very long.

The hotspot index is the number of requests in flight at a replica, averaged over time, of the busiest replica over the mean of all: 1 is
even.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.quantiles import quantiles
from sim.results.metrics import request_latencies_ms
from sim.results.record import RunRecord

LONG_S = (5, 10, 20, 30, 50, 100)  # of TTFT; the thresholds of the published routing study
Floats = NDArray[np.float64]


def fleet_tables(record: RunRecord, prefill: Collection[int] = (), pools: Sequence[str] = ()) -> dict[str, Any]:
    """`replicas`, `decisions`, `long_tail` and `hotspot_index` of a run; times in ms. `prefill` are replicas that hand over what they
    computed: requests count where they are answered, so those have none but the prompt tokens that they computed, and the index leaves
    them out. `pools` are the names of the replicas' pools.
    """
    count = len(record.paid_s) or int(np.max(record.requests["replica"], initial=0)) + 1
    ttft = request_latencies_ms(record)["ttft"]
    answered, ran = _by_replica(record.requests["replica"], count), _by_replica(record.iterations["iteration_replica"], count)
    rows = [_replica(record, ttft, replica, answered[replica], ran[replica]) for replica in range(count)]
    return {
        "replicas": [row | ({"pool": pools[replica]} if pools else {}) for replica, row in enumerate(rows)],
        "decisions": _decisions(record, ttft),
        "long_tail": {str(seconds): int((ttft > 1e3 * seconds).sum()) for seconds in LONG_S},
        "hotspot_index": _hotspot(record, [replica for replica in range(count) if replica not in prefill]),
    }


def _by_replica(replica: Any, count: int) -> list[NDArray[np.int64]]:
    """The rows of every replica, in order."""
    order = np.argsort(replica, kind="stable")
    return np.split(order, np.searchsorted(np.asarray(replica)[order], np.arange(1, count)))


def _decisions(record: RunRecord, ttft: Floats) -> list[dict[str, Any]]:
    """Share of answered requests by the name of the router's decision."""
    numbers = np.where(np.isnan(ttft), -1, record.requests["decision"])
    found = [{"decision": name, **_ttft(ttft[numbers == number], (90, 99))} for number, name in enumerate(record.decision_names)]
    return sorted((row for row in found if row["requests"]), key=lambda row: str(row["decision"]))


def _replica(record: RunRecord, ttft: Floats, replica: int, sent: NDArray[Any], ran: NDArray[Any]) -> dict[str, float | int]:
    """Requests that a replica answered of those `sent` to it, what of their prompts it had, and of its iterations (`ran`) how much of its
    time up they took.
    """
    mine = sent[~np.isnan(ttft[sent])]
    prompts, cached = (int(record.requests[name][mine].sum()) for name in ("prompt_tokens", "cached_tokens"))
    found = {"replica": replica, **_ttft(ttft[mine], (90,)), "prefix_cache_hit_rate": cached / prompts if prompts else np.nan}
    log = record.iterations
    if not len(log["start_s"]):
        return found
    up_s = record.paid_s[replica] if record.paid_s else float((log["start_s"] + log["duration_s"]).max())
    busy = float(log["duration_s"][ran].sum()) / up_s if up_s else 0.0
    computed = int(log["prefill_tokens"][ran].sum())
    return found | {"busy_fraction": busy, "max_waiting": int(log["waiting"][ran].max(initial=0)), "prefill_tokens": computed}


def _ttft(values: Floats, percentiles: tuple[int, ...]) -> dict[str, float | int]:
    """Number of requests that have a TTFT, its mean and percentiles; NaN where none has."""
    present = values[~np.isnan(values)]
    mean, *found = (
        [present.mean(), *quantiles(present, [percent / 100 for percent in percentiles])]
        if len(present)
        else [np.nan] * (1 + len(percentiles))
    )
    return {"requests": len(present), "mean_ttft_ms": float(mean)} | {
        f"p{q}_ttft_ms": float(value) for q, value in zip(percentiles, found, strict=True)
    }


def _hotspot(record: RunRecord, replicas: list[int]) -> float:
    """NaN where no request was in flight."""
    requests = record.requests
    left = np.fmin(np.asarray(requests["finish_s"], dtype=np.float64), np.asarray(requests["cancelled_s"], dtype=np.float64))
    there_s = np.nan_to_num(left - requests["arrival_s"])
    rows = _by_replica(requests["replica"], max(replicas, default=-1) + 1)
    spent = np.array([there_s[rows[replica]].sum() for replica in replicas])
    return float(spent.max() / spent.mean()) if spent.sum() > 0 else float("nan")
