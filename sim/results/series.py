"""Time series of a run in equal bins: queue and batch, KV use, prefix hits, preemptions, latency, busy time by term."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.errors import SimctlError
from sim.results.metrics import request_latencies_ms
from sim.results.record import RunRecord

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Series:
    """Arrays of shape [bins], NaN where nothing happened; `busy` maps each term to its busy seconds per second."""

    start_s: Floats  # of each bin
    width_s: float
    running: Floats  # requests per replica, mean over busy time
    waiting: Floats
    kv_blocks_used: Floats
    preemptions: Floats  # in the bin
    output_tokens_per_s: Floats
    hit_rate: Floats  # share of the prompt tokens first scheduled in the bin that were cached
    ttft_p50_ms: Floats  # of the requests that arrived in the bin
    ttft_p99_ms: Floats
    busy: dict[str, Floats]


def run_series(record: RunRecord, bins: int = 200) -> Series:
    """The run in `bins` bins from its first arrival to its last iteration; an iteration counts where it starts.

    Raises SimctlError when the run kept no iteration log.
    """
    log = record.iterations
    if not len(log["start_s"]):
        raise SimctlError("the run kept no iteration log to draw")
    arrival = np.asarray(record.requests["arrival_s"], dtype=np.float64)
    begin, end = float(arrival.min()), float((log["start_s"] + log["duration_s"]).max())
    width = (end - begin) / bins

    def place(times: Floats) -> NDArray[np.int64]:
        return np.clip(((times - begin) / width).astype(np.int64), 0, bins - 1)

    def total(where: NDArray[np.int64], values: Floats) -> Floats:
        return np.bincount(where, weights=values, minlength=bins).astype(np.float64)

    where, busy = place(log["start_s"]), log["duration_s"]
    with np.errstate(invalid="ignore", divide="ignore"):
        spent = total(where, busy)
        mean = {name: total(where, log[name] * busy) / spent for name in ("running", "waiting", "kv_blocks_used")}
        scheduled = np.asarray(record.requests["scheduled_s"], dtype=np.float64)
        begun = ~np.isnan(scheduled)
        first = place(scheduled[begun])
        cached, prompt = (total(first, np.asarray(record.requests[n], dtype=np.float64)[begun]) for n in ("cached_tokens", "prompt_tokens"))
        hits = cached / prompt
    ttft = request_latencies_ms(record)["ttft"]
    p50, p99 = _percentiles(place(arrival), ttft, bins)
    return Series(
        start_s=begin + width * np.arange(bins, dtype=np.float64),
        width_s=width,
        **mean,
        preemptions=total(where, log["preempted"]),
        output_tokens_per_s=total(where, log["sampled"]) / width,
        hit_rate=hits,
        ttft_p50_ms=p50,
        ttft_p99_ms=p99,
        busy={name: total(where, record.terms[:, i]) / width for i, name in enumerate(record.term_names)},
    )


def _percentiles(where: NDArray[np.int64], values: Floats, bins: int) -> tuple[Floats, Floats]:
    """Median and 99th percentile of the values in each bin; NaN in an empty one."""
    found = np.full((2, bins), np.nan)
    present = ~np.isnan(values)
    where, values = where[present], values[present]
    order = np.argsort(where, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(where[order])) + 1):
        if len(part):
            found[:, where[part[0]]] = np.percentile(values[part], (50.0, 99.0))
    return found[0], found[1]
