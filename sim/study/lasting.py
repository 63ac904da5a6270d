"""Figures of a load that lasts: run until they stand still, the warm-up left out, a queue that grows without end recognised.

A longer and a longer load is served until its figures stand still. Sessions must have come for LIVES times as long as they go on, and
what counts lies between WARM times that and the last start: before, less is asked than for good, and more of it is still in caches that
earlier sessions fill; after, less is asked. Left out, too,
are the warm-up, whose end is where the mean of the requests in the system is known best (MSER: White 1997), and requests so late that
they run out with the load. What is left is cut into BATCHES; their scatter is the error of a figure. A run is long enough when a figure's
interval is far from its limit, or small. The queue grows without end where, in a run and in one twice as long, the requests in the system
follow a trend and rise as a saturated queue does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.cluster.admission import NO_LIMITS
from sim.cluster.losses import Losses, changes_of
from sim.errors import UsageError
from sim.results.metrics import request_latencies_ms
from sim.results.record import RunRecord
from sim.study.run import check_all_fit, planned, run_pools
from sim.study.studied import PlannedPool, Study
from sim.units import format_seconds
from sim.workload.trace import Trace
from sim.workload.workload import Workload

Floats = NDArray[np.float64]
Latency = Mapping[str, Floats]
Read = Callable[[Latency], Sequence[float]]
"""Shares used of limits (1: all of it) by requests whose ttft, tpot and e2el are given in ms; NaN: it did not come to that."""

NO_LOSSES: Mapping[int, Losses] = {}
FIRST, MOST = 1_000, 32_000  # requests of the first and of the longest run
MOST_OF_SESSIONS = 128_000  # of the longest run until as many sessions are under way as for good
BATCHES = 10
WHOLE = 64  # replicas of a fleet that is simulated whole
T_95 = 2.262  # Student's t, 9 degrees of freedom, 95 %
CLOSE = 0.2  # half an interval of so much of a figure is small: many trials know it better
LASTS = 8.0  # a run lasts at least so many answers of its first requests
# and sessions come for so many times as long as all but one in twenty of their calls take to come; the first WARM of these do not count
WARM, LIVES = 1.5, 2.25
TREND = 3.0  # standard errors
RARE = 1e-3
STEADY, GREW = 1.2, 1.8  # from the second quarter of a run to the last; a saturated queue: 2.3, one that just keeps up: 1.5


@dataclass(frozen=True, slots=True)
class Lasting:
    """`used` shares of the limits and their standard `error`; `latency` of the requests that count, ms; whether the queue `grows` without
    end; requests of the longest run; output tokens per second.
    """

    used: tuple[float, ...]
    error: tuple[float, ...]
    latency: Latency
    grows: bool
    requests: int
    tokens_per_s: float


def can_last(workload: Workload) -> bool:
    """Whether the load is one that can go on for ever: drawn, at a constant mean rate or from clients that wait for their answers."""
    return workload.redraw is not None and (workload.max_concurrency is not None or math.isfinite(workload.redraw.rate_per_s))


def one_of_many(study: Study) -> Study:
    """One replica with its share of the calls, where a router deals them out in turn and replicas know nothing of each other: then every
    replica sees the same law. Else the study itself.
    """
    d, workload = study.deployment, study.workload
    apart = study.fleet is None and d.router == "round-robin" and not d.router_options and d.admission == NO_LIMITS
    if d.replicas == 1 or not apart or workload.max_concurrency is not None or workload.redraw is None:
        return study
    redraw = workload.redraw.of_one(d.replicas)
    if redraw is None:
        return study
    return replace(study, deployment=replace(d, replicas=1), workload=replace(workload, redraw=redraw))


def part_of_many(study: Study) -> tuple[Study, float]:
    """A part of a fleet of more than WHOLE replicas, its pools in the same ratio, and the share of the requests that it gets; the study
    itself where clients wait for their answers. A part evens out its load a little less than the whole.
    """
    replicas = [pool.deployment.replicas for pool in study.whole_fleet.pools]
    units = math.gcd(*replicas)
    few = max(WHOLE * units // sum(replicas), 1)
    if few >= units or study.workload.max_concurrency is not None:
        return study, 1.0
    return study.resized([n // units * few for n in replicas]), few / units


def is_whole(workload: Workload, for_s: float | None) -> int:
    """Requests of a load that lasts `for_s` and is run whole; 0: of one that is taken to go on for good, or that is not drawn."""
    if workload.redraw is None or for_s is None:
        return 0
    count = math.ceil(for_s * workload.redraw.rate_per_s)
    return max(count, 1) if count <= MOST else 0


class Lasts:
    """A study's load as long as it takes, trial by trial: each with a draw of the rates and requests of its own.

    `for_s` is how long the load lasts (None: for good). One of at most MOST requests is run whole, and all of it counts; a longer one is
    taken to go on for good. A load that cannot go on (`can_last`) is run as it is. `lost` are losses of replicas, by number, of a load
    that ends.
    """

    def __init__(self, study: Study, for_s: float | None = None, lost: Mapping[int, Losses] = NO_LOSSES) -> None:
        self._whole, self._lost = is_whole(study.workload, for_s) or None, lost
        self.requests = 0  # of each trial; 0: those that the first one needs at the rate asked for
        self._lasts = can_last(study.workload) and self._whole is None
        self.study, self._share = one_of_many(study) if self._lasts else study, 1.0
        self._times = study.deployment.replicas / self.study.deployment.replicas  # of as many replicas that fare alike
        if self._lasts and self._times == 1:
            self.study, self._share = part_of_many(study)
            self._times = 1.0 / self._share
        self.pools: Sequence[PlannedPool] = planned(self.study)

    def trial(self, trial: int, read: Read, factor: float = 1.0) -> Lasting:
        """One trial; requests come `factor` times as fast. Raises UsageError for a request that no engine takes.

        Trials are as long as the first one has to be: if each ended when it seems clear, those that err would end first.
        """
        if not self._lasts:
            record, _ = self._run(trial, factor, None if self._whole is None else math.ceil(self._whole * factor))
            latency = request_latencies_ms(record)
            used = tuple(read(latency))
            return Lasting(used, (0.0,) * len(used), latency, False, len(latency["ttft"]), _tokens_per_s(record, slice(None)))
        first = trial == 0 and factor == 1.0
        if not self.requests and not first:
            self.requests = until_still(lambda requests: self._run(0, 1.0, requests), read).requests
        found = until_still(lambda requests: self._run(trial, factor, requests), read, self.requests)
        if first:
            self.requests = self.requests or found.requests
        return replace(found, tokens_per_s=found.tokens_per_s * self._times)

    def _run(self, trial: int, factor: float, requests: int | None) -> tuple[RunRecord, float]:
        redraw, factor = self.study.workload.redraw, factor * self._share
        trace = self.study.workload.trace if redraw is None else without_rare(redraw(trial, requests), self.pools)
        if factor != 1.0:
            trace = trace.rate_scaled(factor)
        check_all_fit(self.study, trace, self.pools)
        study = self.study
        if self._lost and (changes := changes_of(self._lost, float(np.nanmax(trace.arrival_s)), [redraw.seed if redraw else 0, trial])):
            study = replace(study, fleet=replace(study.whole_fleet, changes=changes))
        return run_pools(study, self.pools, trace, trial), last_start_s(study.workload, trace)


def without_rare(trace: Trace, pools: Sequence[PlannedPool]) -> Trace:
    """Drawn calls without those too long for every engine, where less than RARE of them are and none waits for another: a server turns
    them away, and no trial of many hangs on them.
    """
    longest = max(min(pool.config.max_model_len, pool.config.kv_capacity_tokens) for pool in pools)
    fits = trace.prompt_tokens + trace.output_tokens <= longest
    if fits.all() or fits.mean() < 1.0 - RARE or any(trace.session_ids) or trace.after:
        return trace
    return trace.taken(np.flatnonzero(fits))


def outgrows(study: Study) -> bool:
    """Whether the queue grows without end, at the median rates, where a study's load goes on; False of one that cannot."""
    study = one_of_many(study)
    redraw, pools = study.workload.redraw, planned(study)
    if redraw is None or not can_last(study.workload):
        return False

    def run(requests: int) -> tuple[RunRecord, float]:
        trace = redraw(0, requests)
        check_all_fit(study, trace, pools)
        return run_pools(study, pools, trace), math.inf  # a growing queue shows before as many sessions are under way as for good

    return until_still(run, lambda _: [0.0]).grows


def last_start_s(workload: Workload, trace: Trace) -> float:
    """When the last session starts, of a load whose sessions come at a rate; infinite of one whose calls wait for no other."""
    waits = np.isnan(trace.arrival_s)
    return float(trace.arrival_s[~waits].max()) if waits.any() and workload.max_concurrency is None else math.inf


def until_still(run: Callable[[int], tuple[RunRecord, float]], read: Read, least: int = 0) -> Lasting:
    """Run more and more requests until the figures that are read are known well enough, and nothing follows a trend; or until the queue
    is seen to grow without end. `run` says when the last session starts, too. With `least` requests the figures are taken to be known well
    enough.
    """
    requests, rises = least or FIRST, 0
    while True:
        (record, start_s), last = run(requests), requests >= MOST
        arrival = np.asarray(record.requests["arrival_s"], dtype=float)
        order = np.argsort(arrival, kind="stable")
        arrival, span = arrival[order], float(np.ptp(arrival))
        latency = {name: values[order] for name, values in request_latencies_ms(record).items()}
        answer_s = 1e-3 * _mean(latency["e2el"][: max(len(arrival) // 10, 1)])
        if span < LASTS * answer_s and not last:
            requests = min(max(2 * requests, math.ceil(1.1 * requests * LASTS * answer_s / span) if span else MOST), MOST)
            continue
        inside, ages = _in_system(arrival, _left(record)[order]), _ages_s(record, start_s)
        lives = LIVES * ages / start_s
        if ages:
            begin = int(np.searchsorted(arrival, WARM * ages)) if WARM * ages < start_s else 0
            full = slice(begin, int(np.searchsorted(arrival, start_s, side="right")))
            arrival, order, inside = arrival[full], order[full], inside[full]
            latency = {name: values[full] for name, values in latency.items()}
        window = _window(arrival, inside, latency["e2el"])
        counted = {name: values[window] for name, values in latency.items()}
        rises = rises + 1 if (grows := _grows(inside)) > GREW else 0
        used, error = _with_error(counted, read)
        fails = bool((used - 2 * error > 1.0).any())
        settled = bool(least) or bool(((np.abs(used - 1.0) > 2 * error) | (error < CLOSE * used)).all())
        if lives > 1.0 and not fails:  # less is asked than for good: only what fails is certain
            requests, rises = _until_all_are_there(requests, lives, ages), 0
            continue
        if last or fails or rises > 1 or (settled and grows <= STEADY):
            rate = _tokens_per_s(record, order[window])
            return Lasting(tuple(used.tolist()), tuple((error / T_95).tolist()), counted, rises > 0, requests, rate)
        requests = min(2 * requests, MOST)


def _until_all_are_there(requests: int, lives: float, ages: float) -> int:
    """More requests, of sessions that have not come for long enough."""
    if requests >= MOST_OF_SESSIONS:
        raise UsageError(
            f"sessions go on for {format_seconds(ages)}: after {requests:,} requests they still gather, and what they ask for good is not "
            "seen; ask about a load that ends (plan --for TIME)"
        )
    return min(max(2 * requests, math.ceil(1.1 * requests * lives)), MOST_OF_SESSIONS)


def _ages_s(record: RunRecord, start_s: float) -> float:
    """How long after the first call of its session all but one in twenty calls come; 0 where sessions never stop to start."""
    if math.isinf(start_s):
        return 0.0
    arrival = np.asarray(record.requests["arrival_s"], dtype=float)
    first: dict[str | None, float] = {}
    for session, at_s in zip(record.session_ids, arrival.tolist(), strict=True):
        first[session] = min(at_s, first.get(session, at_s))
    begun = [at_s if session is None else first[session] for session, at_s in zip(record.session_ids, arrival.tolist(), strict=True)]
    return float(np.quantile(arrival - np.array(begun), 0.95))


def _left(record: RunRecord) -> Floats:
    """Departure of each request: answered, given up, or turned away at once."""
    columns = record.requests
    left = np.fmax(np.asarray(columns["finish_s"], dtype=float), np.asarray(columns["cancelled_s"], dtype=float))
    return np.where(np.isnan(left), columns["arrival_s"], left).astype(float)


def _in_system(arrival: Floats, left: Floats) -> Floats:
    """Requests in the system just after each arrival."""
    return np.arange(1.0, len(arrival) + 1) - np.searchsorted(np.sort(left), arrival, side="right")


def _window(arrival: Floats, inside: Floats, e2el_ms: Floats) -> slice:
    """The requests that count, in order of arrival: after the warm-up, and before the load runs out."""
    size = max(len(inside) // 100, 1)
    means = inside[: len(inside) // size * size].reshape(-1, size).mean(axis=1)
    left = np.arange(len(means), 0, -1)
    begin = size * int(np.argmin((_variance_of_rest(means) / left)[: len(means) // 2 + 1]))
    over_s = min(1e-3 * _mean(e2el_ms[begin:]), 0.25 * float(np.ptp(arrival)))
    end = int(np.searchsorted(arrival, arrival[-1] - over_s, side="right"))
    return slice(begin, max(end, begin + BATCHES))


def _variance_of_rest(values: Floats) -> Floats:
    """Variance of the values from each one on."""
    count, off = np.arange(len(values), 0, -1), values - values.mean()
    mean, square = (np.cumsum(each[::-1])[::-1] / count for each in (off, off**2))
    return np.asarray(square - mean**2)


def _grows(inside: Floats) -> float:
    """Number of times that the requests in the system rise from the second quarter of a run to the last; 1 where they follow no trend."""
    quarter = len(inside) // 4
    means = np.array([part.mean() for part in np.array_split(inside[quarter:], BATCHES)])
    at = np.arange(BATCHES) - (BATCHES - 1) / 2
    slope = float((at * means).sum() / (at**2).sum())
    rest = means - means.mean() - slope * at
    error = math.sqrt(float((rest**2).sum()) / (BATCHES - 2) / float((at**2).sum()))
    return float(inside[3 * quarter :].mean() / inside[quarter : 2 * quarter].mean()) if slope > TREND * error else 1.0


def _with_error(latency: Latency, read: Read) -> tuple[Floats, Floats]:
    """What is read of all requests, and half the width of its 95 % interval by what it is without each of consecutive batches: a jackknife,
    for a batch of 100 requests has no percentile 99 of its own.
    """
    used = np.asarray(read(latency), dtype=float)
    ends = np.cumsum([0, *map(len, np.array_split(latency["ttft"], BATCHES))]).tolist()
    parts = np.array([read(_Without(latency, begin, end)) for begin, end in pairwise(ends)])
    with np.errstate(invalid="ignore"):
        error = T_95 * parts.std(axis=0) * math.sqrt(BATCHES - 1)
    return used, np.where(np.isinf(used), 0.0, np.where(np.isfinite(error), error, np.inf))


class _Without(dict[str, Floats]):
    """Latencies without those of some requests in a row, as far as they are looked at."""

    def __init__(self, latency: Latency, begin: int, end: int) -> None:
        super().__init__()
        self._latency, self._begin, self._end = latency, begin, end

    def __missing__(self, name: str) -> Floats:
        values = self._latency[name]
        self[name] = found = np.concatenate((values[: self._begin], values[self._end :]))
        return found


def _tokens_per_s(record: RunRecord, rows: Any) -> float:
    """Output tokens of these requests over the span of their arrivals: who meets an SLO keeps up with it. Over the run where all came at
    once.
    """
    columns = record.requests
    tokens, arrival = int(columns["generated_tokens"][rows].sum()), columns["arrival_s"][rows]
    span = float(np.ptp(arrival)) or float(np.nanmax(columns["finish_s"], initial=0.0) - arrival.min())
    return tokens / span if span > 0.0 else math.nan


def _mean(values: Floats) -> float:
    """The mean of those that there are; 0 of none."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else 0.0
