"""What users read off a run, each figure derived from the per-request record and the iteration log. Names follow `vllm bench serve`.

TTFT is first token minus arrival. TPOT is (E2EL - TTFT) / (output tokens - 1), requests of one token left out. ITL is per gap between
consecutive tokens, pooled over requests. E2EL is finish minus arrival. Percentiles interpolate linearly, as numpy does by default.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.admission import BUCKET, QUEUE, TTFT
from sim.errors import UsageError
from sim.runlog import RunRecord

Floats = NDArray[np.float64]
LATENCIES = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = (50, 90, 95, 99)
_GOAL = re.compile(r"(ttft|tpot|e2el):([0-9.]+)")


def parse_goodput(texts: Sequence[str]) -> dict[str, float]:
    """Service levels `ttft:200 tpot:50 e2el:5000`, milliseconds. Raises UsageError for any other spelling, or a repeated name."""
    goals: dict[str, float] = {}
    for text in (part for each in texts for part in re.split(r"[\s,]+", each.strip())):
        match = _GOAL.fullmatch(text)
        try:
            value = float(match[2]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or not value > 0:
            raise UsageError(f"not a service level: {text!r} (examples: ttft:200 tpot:50 e2el:5000, in ms)")
        if match[1] in goals:
            raise UsageError(f"service level {match[1]} is given twice")
        goals[match[1]] = value
    return goals


def request_latencies_ms(record: RunRecord) -> dict[str, Floats]:
    """TTFT, TPOT and E2EL of every request, milliseconds, NaN where there is none (not finished; one token has no TPOT)."""
    columns = {name: np.asarray(values, dtype=np.float64) for name, values in record.requests.items()}
    e2el = columns["finish_s"] - columns["arrival_s"]
    ttft = np.where(np.isnan(e2el), math.nan, columns["first_token_s"] - columns["arrival_s"])
    gaps = columns["generated_tokens"] - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(gaps > 0, (e2el - ttft) / gaps, math.nan)
    return {"ttft": 1e3 * ttft, "tpot": 1e3 * tpot, "e2el": 1e3 * e2el}


def pooled_itl_ms(record: RunRecord) -> tuple[Floats, NDArray[np.int64]]:
    """(gap lengths in ms, how many gaps of each): one entry per iteration that closed any, then the stalls, one each."""
    log = record.iterations
    ends, replica, counts = log["start_s"] + log["duration_s"], log["iteration_replica"], log["itl_gaps"]
    values, weights = [], []
    for index in np.unique(replica):
        mine = replica == index
        own_ends, own_counts = ends[mine], counts[mine]
        closed = own_counts[1:] > 0
        values.append(np.diff(own_ends)[closed])
        weights.append(own_counts[1:][closed].astype(np.int64))
    values.append(record.stall_s)
    weights.append(np.ones(len(record.stall_s), dtype=np.int64))
    return 1e3 * np.concatenate(values), np.concatenate(weights)


def weighted_percentiles(values: Floats, weights: NDArray[np.int64], percentiles: Sequence[float]) -> list[float]:
    """np.percentile(np.repeat(values, weights), percentiles) without the repetition; NaN when there is nothing."""
    if not len(values):
        return [math.nan] * len(percentiles)
    order = np.argsort(values, kind="stable")
    ordered, upto = values[order], np.cumsum(weights[order])
    found = []
    for q in percentiles:
        place = q / 100.0 * (upto[-1] - 1)
        low = math.floor(place)
        a = float(ordered[np.searchsorted(upto, low, side="right")])
        b = float(ordered[np.searchsorted(upto, min(low + 1, upto[-1] - 1), side="right")])
        found.append(a + (b - a) * (place - low))
    return found


def statistics(name: str, values: Floats, weights: NDArray[np.int64] | None = None) -> dict[str, float]:
    """Mean, median, standard deviation and percentiles of one latency, keyed as in `mean_ttft_ms`; NaN when there is nothing."""
    if weights is None:
        weights = np.ones(len(values), dtype=np.int64)
    total = int(weights.sum())
    mean = float((values * weights).sum() / total) if total else math.nan
    variance = float((weights * (values - mean) ** 2).sum() / total) if total else math.nan
    found = weighted_percentiles(values, weights, PERCENTILES)
    out = {f"mean_{name}_ms": mean, f"median_{name}_ms": found[0], f"std_{name}_ms": math.sqrt(variance)}
    return out | {f"p{q}_{name}_ms": value for q, value in zip(PERCENTILES[1:], found[1:], strict=True)}


def summarise(record: RunRecord, goodput: Mapping[str, float] | None = None) -> dict[str, float | int]:
    """The figures of the run: counts, throughputs (per second of makespan), latencies, cache, queue and KV use."""
    requests = record.requests
    latency = request_latencies_ms(record)
    done = ~np.isnan(latency["e2el"])
    completed = int(done.sum())
    finish, arrival = np.asarray(requests["finish_s"]), np.asarray(requests["arrival_s"])
    duration = float(np.nanmax(finish) - arrival.min()) if completed else math.nan
    prompts, outputs = np.asarray(requests["prompt_tokens"])[done], np.asarray(requests["generated_tokens"])[done]
    inputs, generated = int(prompts.sum()), int(outputs.sum())
    out: dict[str, float | int] = {
        "num_prompts": len(done),
        "completed": completed,
        "failed": len(done) - completed,
        **_turned_away(np.asarray(requests["rejected"])),
        "duration": duration,
        "total_input_tokens": inputs,
        "total_output_tokens": generated,
        "request_throughput": completed / duration,
        "output_throughput": generated / duration,
        "total_token_throughput": (inputs + generated) / duration,
    }
    if goodput:
        good = done.copy()
        for name, limit in goodput.items():
            # a request of one token has no TPOT and cannot miss it
            good &= ~(latency[name] > limit)
        out["request_goodput"] = int(good.sum()) / duration
    for name in ("ttft", "tpot"):
        out |= statistics(name, latency[name][~np.isnan(latency[name])])
    if len(record.iterations["start_s"]):
        out |= statistics("itl", *pooled_itl_ms(record))
    out |= statistics("e2el", latency["e2el"][done])
    times = np.concatenate([arrival[done], finish[done]])
    steps = np.repeat([1, -1], completed)
    # a finish frees its place before a send of the same instant takes it
    in_flight = np.cumsum(steps[np.lexsort((steps, times))])
    late = ~(np.asarray(requests["scheduled_s"]) <= arrival.max()) & (np.asarray(requests["rejected"]) == 0)
    wait = 1e3 * (np.asarray(requests["scheduled_s"]) - arrival)[done]
    out |= {
        "mean_wait_ms": float(wait.mean()) if completed else math.nan,
        "p99_wait_ms": float(np.percentile(wait, 99)) if completed else math.nan,
        "prefix_cache_hit_rate": float(np.asarray(requests["cached_tokens"])[done].sum() / inputs) if inputs else math.nan,
        "waiting_at_last_arrival": int((late & (arrival < arrival.max())).sum()),
        "max_concurrent_requests": int(in_flight.max(initial=0)),
        "preemptions": int(np.asarray(requests["preemptions"]).sum()),
    }
    return out | engine_figures(record, duration)


def _turned_away(limits: NDArray[np.int64]) -> dict[str, int]:
    """How many requests each limit of admission turned away; empty when none did."""
    names = {"rejected_full_queue": QUEUE, "rejected_ttft_goal": TTFT, "rejected_token_bucket": BUCKET}
    return {name: int((limits == limit).sum()) for name, limit in names.items()} if limits.any() else {}


def engine_figures(record: RunRecord, duration_s: float) -> dict[str, float | int]:
    """Iterations, batch, queue and KV use, averaged over busy time; empty when the run kept no iteration log."""
    log, busy = record.iterations, record.iterations["duration_s"]
    if not len(busy):
        return {}
    spent = float(busy.sum())
    ends = log["start_s"] + busy
    per_second = np.bincount((ends - log["start_s"][0]).astype(np.int64), weights=log["sampled"])
    return {
        "max_output_tokens_per_s": float(per_second.max()),
        "iterations": len(busy),
        "busy_fraction": spent / duration_s / len(np.unique(log["iteration_replica"])),
        "mean_running": float((log["running"] * busy).sum() / spent),
        "max_running": int(log["running"].max()),
        "mean_waiting": float((log["waiting"] * busy).sum() / spent),
        "max_waiting": int(log["waiting"].max()),
        "mean_kv_blocks_used": float((log["kv_blocks_used"] * busy).sum() / spent),
        "max_kv_blocks_used": int(log["kv_blocks_used"].max()),
    }


def bill_shares(record: RunRecord) -> dict[str, float]:
    """Share of the busy time that each term of the bill took, largest first; terms that took none are left out."""
    total = record.terms.sum(axis=0)
    spent = float(total.sum()) or 1.0
    ranked = sorted(zip(record.term_names, total, strict=True), key=lambda pair: -pair[1])
    return {name: float(value / spent) for name, value in ranked if value > 0.0}
