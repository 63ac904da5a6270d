"""Arrival processes: when clients want to send."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.workload.rate_curve import RateCurve
from sim.workload.trace import Trace


def arrival_times(count: int, rate_per_s: float | RateCurve, burstiness: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """`count` arrival times in seconds at `rate_per_s`, the first after one gap, the last at count / rate.

    As `vllm bench serve` sends them: gaps are gamma with shape `burstiness` (1 is Poisson, less clusters, more evens out, infinity is
    constant), then all are rescaled so that the last request leaves at count / rate. An infinite rate sends everything at 0. Along a curve,
    time runs as fast as its rate: arrivals at rate 1, in the curve's time. Raises UsageError unless both are positive.
    """
    if isinstance(rate_per_s, RateCurve):
        return rate_per_s.times(arrival_times(count, 1.0, burstiness, rng))
    if not rate_per_s > 0.0:
        raise UsageError(f"request rate must be positive, got {rate_per_s:g}")
    if not burstiness >= 1e-6:  # with less, gaps round to nothing
        raise UsageError(f"burstiness must be positive, at least 1e-6, got {burstiness:g}")
    if math.isinf(rate_per_s):
        return np.zeros(count)
    if math.isinf(burstiness):
        return np.arange(1, count + 1) / rate_per_s
    times = np.cumsum(rng.gamma(burstiness, 1.0 / (rate_per_s * burstiness), size=count))
    return np.asarray(times * (count / rate_per_s / times[-1]) if count and times[-1] > 0.0 else times)


def jitter_within_buckets(trace: Trace, bucket_s: float, rng: np.random.Generator) -> Trace:
    """The trace with every arrival put off by a uniform share of `bucket_s`, for times that were rounded down to buckets; sorted again.

    Calls of sessions keep their order. Raises UsageError unless 0 <= bucket_s < infinity.
    """
    if not 0.0 <= bucket_s < math.inf:
        raise UsageError(f"the bucket to spread over must be a finite time >= 0, got {bucket_s:g} s")
    if trace.after or any(session is not None for session in trace.session_ids):
        raise UsageError("arrivals of sessions cannot be spread: their turns would change order")
    if not bucket_s:
        return trace
    times = trace.arrival_s + rng.uniform(0.0, bucket_s, size=len(trace))
    order = np.argsort(times, kind="stable")
    return trace.retimed(times).taken(order)


def with_arrivals(trace: Trace, rate_per_s: float | RateCurve, burstiness: float, rng: np.random.Generator) -> Trace:
    """The trace's calls at drawn times instead of their own; turns that follow their session's previous turn still do.

    Turns of a session keep their order: its later turns with times of their own then follow the previous one, too.
    """
    first: set[str] = set()
    starts = np.zeros(len(trace), dtype=bool)
    independent = not trace.after and trace.session_ids.count(None) == len(trace)
    starts[:] = independent
    for i, session in enumerate(trace.session_ids if not independent else ()):
        starts[i] = (session is None or session not in first) and not (trace.after and trace.after[i])
        if session is not None:
            first.add(session)
    times = np.full(len(trace), math.nan)
    times[starts] = arrival_times(int(starts.sum()), rate_per_s, burstiness, rng)
    return trace.retimed(times)
