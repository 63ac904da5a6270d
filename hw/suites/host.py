"""host: how fast this machine's processor drives a GPU, in seconds and without an engine or weights.

What an iteration costs beside its kernels is the host's: the interpreter that schedules, the dispatcher and the driver that launch, the
wake-ups between processes. Each figure is the median of repeats of a burst; bursts that launch are timed on the host up to the last
launch (`queue`) and on the device up to the last kernel (`done`): of the two the longer binds. Without a GPU the first ones remain.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from hw.artifact import table
from hw.journal import Journal
from hw.pace import summarize, undisturbed

REPEATS = 15
KERNELS = 400  # of a burst
LAYER = 1024  # width of the small layer that stands for one of a model
DESCRIBED = {
    "what": ("quantity", ""),
    "value_median": ("median over repeats", "see unit"),
    "value_p25": ("lower quartile", "see unit"),
    "value_p75": ("upper quartile", "see unit"),
    "value_n": ("repeats", "1"),
    "unit": ("unit of value", ""),
}


def _row(what: str, samples: list[float], unit: str = "s") -> dict[str, Any]:
    return {"what": what, "unit": unit, **summarize(samples, "value")}


def _each(work: Callable[[], Any], count: int) -> list[float]:
    """Seconds of one of `count` things that `work` does, of each repeat, after one that is not counted."""
    found = []
    for _ in range(REPEATS + 1):
        begun = time.perf_counter()
        work()
        found.append((time.perf_counter() - begun) / count)
    return found[1:]


def processor() -> list[dict[str, Any]]:
    """Interpreter, memory and wake-ups between processes."""
    record = {"id": "r1", "tokens": list(range(64)), "text": "a" * 64, "inner": {str(i): i / 7 for i in range(16)}}
    source = np.random.default_rng(0).standard_normal(2**24)
    target = np.empty_like(source)

    def loop() -> None:
        total = 0
        for i in range(20_000):
            total = (total + i) & 0xFFFF

    def objects() -> None:
        for _ in range(200):
            json.loads(json.dumps(record))

    copied = [2.0 * source.nbytes / s for s in _each(lambda: np.copyto(target, source), 1)]
    rows = [_row("interpreter_loop", _each(loop, 20_000)), _row("json_round_trip", _each(objects, 200))]
    return [*rows, _row("memory_copy", copied, "bytes/s"), _row("process_round_trip", _round_trips())]


def _round_trips(count: int = 200) -> list[float]:
    """Seconds of a short message to another process and back."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    other = context.Process(target=_echo, args=(theirs,), daemon=True)
    other.start()
    try:
        ours.send(b"ready")
        ours.recv()

        def talk() -> None:
            for _ in range(count):
                ours.send(b"x" * 64)
                ours.recv()

        return _each(talk, count)
    finally:
        ours.send(None)
        other.join(5.0)


def _echo(pipe: Any) -> None:
    while (message := pipe.recv()) is not None:
        pipe.send(message)


def dispatcher() -> list[dict[str, Any]]:
    """One addition of a tensor of one element on the CPU: PyTorch's dispatcher and nothing else."""
    import torch

    x = torch.zeros(1)

    def burst() -> None:
        for _ in range(KERNELS):
            x.add_(1.0)

    with torch.inference_mode():
        return [_row("dispatch", _each(burst, KERNELS))]


def _queued_and_done(what: str, burst: Callable[[], Any], count: int) -> list[dict[str, Any]]:
    """Rows of a burst of `count` launches: seconds of each until the host had queued them, and until the device had run them."""
    import torch

    queued, done = [], []
    for _ in range(REPEATS + 1):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        burst()
        queued.append((time.perf_counter() - begun) / count)
        torch.cuda.synchronize()
        done.append((time.perf_counter() - begun) / count)
    return [_row(f"{what}_queue", queued[1:]), _row(f"{what}_done", done[1:])]


def launches() -> list[dict[str, Any]]:
    """Small kernels launched one by one, by compiled code and by a captured graph; a small layer; the way back of one number."""
    import torch

    x = torch.randn(256, device="cuda")
    weights = [torch.randn(LAYER, LAYER, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    hidden = torch.randn(8, LAYER, device="cuda", dtype=torch.bfloat16)

    def burst() -> None:
        for _ in range(KERNELS):
            x.add_(1e-9)

    def layer(h: Any) -> Any:
        for weight in weights:  # eight kernels a call: products, and what stands between them
            h = torch.nn.functional.silu(torch.nn.functional.linear(h, weight)) * 0.5
        return h

    def layers(f: Callable[[Any], Any]) -> None:
        for _ in range(KERNELS // 8):
            f(hidden)

    rows = []
    with torch.inference_mode():
        rows += _queued_and_done("launch_eager", burst, KERNELS)
        rows += _queued_and_done("layer_eager", partial(layers, layer), KERNELS // 8)
        compiled = torch.compile(layer, fullgraph=True)
        rows += _queued_and_done("layer_compiled", partial(layers, compiled), KERNELS // 8)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            burst()
        rows += _queued_and_done("graph_kernel", graph.replay, KERNELS)
        one = torch.cuda.CUDAGraph()
        with torch.cuda.graph(one):
            x.add_(1e-9)

        def replays() -> None:
            for _ in range(50):
                one.replay()

        rows += _queued_and_done("graph_launch", replays, 50)

        def back() -> None:
            for _ in range(50):
                x.add_(1e-9)
                x[0].item()

        return [*rows, _row("number_back", _each(back, 50))]


def described() -> dict[str, Any]:
    """Cores this process may use, and their clock and cache as the system tells them (MHz, kB; 0 where it does not)."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    found = {
        key: next((float(line.split(":")[1].split()[0]) for line in info.splitlines() if line.startswith(key)), 0.0)
        for key in ("cpu MHz", "cache size")
    }
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    return {"cpu_cores": cores, "cpu_clock_mhz": found["cpu MHz"], "cpu_cache_kb": found["cache size"]}


def measure(device: str) -> list[dict[str, Any]]:
    """All rows that `device` has."""
    with undisturbed():
        return processor() + (dispatcher() + launches() if device == "cuda" else [])


def headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Attributes that files of other suites carry of it: `host_{what}`, in the units of the rows."""
    return {f"host_{row['what']}": float(row["value_median"]) for row in rows} | described()


def run(job: Any, journal: Journal, attrs: dict[str, Any]) -> None:
    """The whole suite."""
    journal.add("host", rows=measure(job.device))
    attrs |= described() | {"finished": 1}


def dataset(records: list[dict[str, Any]], attrs: dict[str, Any]) -> Any:
    """The journal as an xarray Dataset along `row`."""
    import xarray as xr

    return xr.Dataset(table("row", records[-1]["rows"], DESCRIBED), attrs=attrs)
