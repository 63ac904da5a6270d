"""Time GPU work the way decode runs it: captured in CUDA graphs, candidates interleaved, medians with percentiles.

A candidate is a list of zero-argument callables, one per input set. Its graph runs them one after the other, so a call
finds its inputs in device memory, not in the L2 cache left by the call before: give sets whose bytes add up to several
times the L2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

Work = Callable[[], object]


def capture(calls: Sequence[Work], rounds: int = 1, warmup: int = 2) -> torch.cuda.CUDAGraph:
    """Capture `rounds` passes over `calls` in one CUDA graph, after `warmup` eager passes on the capture stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(rounds):
            for call in calls:
                call()
    return graph


def replay_s(graph: torch.cuda.CUDAGraph) -> float:
    """Device seconds of one replay, between CUDA events."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3


def rounds_for(calls: Sequence[Work], graph_s: float, most: int = 256) -> int:
    """Passes over `calls` making one graph last about `graph_s` seconds, far above the event resolution (0.5 us)."""
    graph = capture(calls)
    replay_s(graph)
    once_s = min(replay_s(graph) for _ in range(3))
    del graph
    return max(1, min(most, int(graph_s / max(once_s, 1e-7))))


def interleaved(
    candidates: Mapping[str, Sequence[Work]],
    repeats: int = 15,
    graph_s: float = 1e-3,
    deadline: float | None = None,
    on_error: Callable[[str, Exception], None] | None = None,
) -> dict[str, np.ndarray]:
    """Seconds per call of every candidate, shape [repeats], measured in rounds so that drift hits all of them alike.

    Each round has an order of its own, and a candidate more than twice as slow as the fastest is timed in rounds apart, after the
    others: what follows tens of milliseconds of other work reads up to 2 % slower for about a millisecond (seen on an H200).
    `deadline` is a `time.monotonic()` instant after which no further round starts (three rounds are always made).
    A candidate that cannot be captured is reported through `on_error` and left out; without it the error propagates.
    """
    graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]] = {}
    for name, calls in candidates.items():
        try:
            rounds = rounds_for(calls, graph_s)
            graphs[name] = (capture(calls, rounds, warmup=0), rounds * len(calls))
        except (RuntimeError, ValueError) as error:
            if on_error is None:
                raise
            on_error(name, error)
    once = {name: replay_s(graph) / n_calls for name, (graph, n_calls) in graphs.items()}
    slow = [name for name in graphs if once[name] > 2 * min(once.values())]
    times: dict[str, list[float]] = {name: [] for name in graphs}
    order = np.random.default_rng(0)
    for names in ([name for name in graphs if name not in slow], slow):
        for i in range(repeats):
            if i >= 3 and deadline is not None and time.monotonic() > deadline:
                break
            for name in order.permutation(names):
                graph, n_calls = graphs[name]
                times[name].append(replay_s(graph) / n_calls)
    return {name: np.asarray(values) for name, values in times.items()}


def percentiles(values_s: np.ndarray) -> dict[str, float]:
    """Median, 10th and 90th percentile and number of repeats of a sample of seconds."""
    low, mid, high = np.percentile(values_s, [10, 50, 90])
    return {"median_s": float(mid), "p10_s": float(low), "p90_s": float(high), "repeats": int(values_s.size)}
