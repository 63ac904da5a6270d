"""Floors: what this device does at best, so that every other number can be read against it.

Copy and read bandwidth, matrix products by dtype, the cost of a launch (eager and replayed from a graph), the host link by size,
and all-reduce by size where there are several GPUs.
Each figure is the median of repeats on rotating buffers; the inputs are random, since zeros run faster.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hw.spread import summarize
from hw.suites import all_reduce

DESCRIBED = {
    "what": ("quantity", ""),
    "dtype": ("element type", ""),
    "size_bytes": ("bytes of one buffer", "bytes"),
    "gpus": ("devices taking part", "1"),
    "value_median": ("median over repeats", "see unit"),
    "value_p25": ("lower quartile", "see unit"),
    "value_p75": ("upper quartile", "see unit"),
    "value_n": ("repeats", "1"),
    "unit": ("unit of value", ""),
}


def timer(device: str) -> Callable[[Callable[[], Any]], float]:
    """A function that runs `work` once and returns its seconds: device events on CUDA, the host clock elsewhere."""

    def on_host(work: Callable[[], Any]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def on_device(work: Callable[[], Any]) -> float:
        import torch

        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        work()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e-3

    return on_device if device == "cuda" else on_host


def rates(work: Callable[[int], Any], amount: float, device: str, repeats: int) -> list[float]:
    """amount / seconds of each repeat, after two that are not counted. `work` gets the repeat's number to rotate buffers by."""
    clock = timer(device)
    samples = []
    for repeat in range(repeats + 2):
        seconds = clock(lambda repeat=repeat: work(repeat))
        if repeat >= 2:
            samples.append(amount / seconds)
    return samples


def _row(what: str, samples: list[float], unit: str, dtype: str = "", size: int = 0) -> dict[str, Any]:
    return {"what": what, "dtype": dtype, "size_bytes": size, "gpus": 1, "unit": unit, **summarize(samples, "value")}


def memory(device: str, size: int, repeats: int = 20) -> list[dict[str, Any]]:
    """Copy (bytes read plus written) and read bandwidth over buffers of `size` bytes."""
    import torch

    buffers = [torch.randn(size // 4, device=device) for _ in range(2)]
    target = torch.empty_like(buffers[0])
    copy = rates(lambda i: target.copy_(buffers[i % 2]), 2.0 * size, device, repeats)
    read = rates(lambda i: torch.sum(buffers[i % 2]), 1.0 * size, device, repeats)
    return [_row("copy", copy, "bytes/s", "fp32", size), _row("read", read, "bytes/s", "fp32", size)]


def matmul(device: str, n: int, repeats: int = 10) -> list[dict[str, Any]]:
    """Square products of size n by dtype; fp8 (e4m3, fp16 out) where the device has it."""
    import torch

    kinds = {"fp32": torch.float32} if device == "cpu" else {"bf16": torch.bfloat16, "fp16": torch.float16}
    rows = []
    for name, dtype in kinds.items():
        a, b = torch.randn(n, n, device=device).to(dtype), torch.randn(n, n, device=device).to(dtype)
        samples = rates(lambda i, a=a, b=b: a @ b, 2.0 * n**3, device, repeats)
        rows.append(_row("matmul", samples, "flop/s", name, a.numel() * a.element_size()))
    if device == "cuda" and torch.cuda.get_device_capability() >= (8, 9):
        one = torch.ones((), device=device)
        a = torch.randn(n, n, device=device).to(torch.float8_e4m3fn)
        b = torch.randn(n, n, device=device).to(torch.float8_e4m3fn).t()
        samples = rates(
            lambda i: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
            2.0 * n**3, device, repeats,
        )  # fmt: skip
        rows.append(_row("matmul", samples, "flop/s", "fp8", a.numel()))
    return rows


def launches(count: int = 500, repeats: int = 10) -> list[dict[str, Any]]:
    """Seconds per tiny kernel: launched one by one from Python, and replayed from a captured graph."""
    import torch

    x = torch.randn(256, device="cuda")
    clock = timer("cuda")

    def burst() -> None:
        for _ in range(count):
            x.add_(1e-9)

    burst()
    eager = [clock(burst) / count for _ in range(repeats)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        burst()
    graph.replay()
    replay = [clock(graph.replay) / count for _ in range(repeats)]
    return [_row("launch_eager", eager, "s"), _row("launch_graph", replay, "s")]


def host_link(sizes: tuple[int, ...] = (2**12, 2**16, 2**20, 2**24, 2**28), repeats: int = 10) -> list[dict[str, Any]]:
    """Pinned host-to-device and device-to-host copies by size: bytes/s, latency included."""
    import torch

    rows = []
    for size in sizes:
        host, device = torch.empty(size, dtype=torch.uint8, pin_memory=True), torch.empty(size, dtype=torch.uint8, device="cuda")
        host.random_()
        up = rates(lambda i, d=device, h=host: d.copy_(h, non_blocking=True), float(size), "cuda", repeats)
        down = rates(lambda i, d=device, h=host: h.copy_(d, non_blocking=True), float(size), "cuda", repeats)
        rows += [_row("host_to_device", up, "bytes/s", "u8", size), _row("device_to_host", down, "bytes/s", "u8", size)]
    return rows


def measure(device: str, *, quick: bool = False) -> list[dict[str, Any]]:
    """All floors of `device` as rows of DESCRIBED; `quick` keeps copy, read and the main matmul (about a second)."""
    if device == "cpu":
        return memory("cpu", 2**26, 10) + matmul("cpu", 512) if library() == "torch" else with_numpy()
    rows = memory("cuda", 2**30 if quick else 2**31) + matmul("cuda", 8192, 5 if quick else 20)
    if not quick:
        rows += launches() + host_link()
    import torch

    torch.cuda.empty_cache()
    if not quick and torch.cuda.device_count() > 1:
        rows += all_reduce.measure(torch.cuda.device_count())
    return rows


def library() -> str:
    """What floors are measured with here: torch, or numpy on a machine without it."""
    return "torch" if importlib.util.find_spec("torch") else "numpy"


def with_numpy(size: int = 2**26, n: int = 512, repeats: int = 10) -> list[dict[str, Any]]:
    """The CPU's floors without torch: copy, read and an fp32 product."""
    rng = np.random.default_rng(0)
    buffers = [rng.standard_normal(size // 4, dtype=np.float32) for _ in range(2)]
    target = np.empty_like(buffers[0])
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    copy = rates(lambda i: np.copyto(target, buffers[i % 2]), 2.0 * size, "cpu", repeats)
    read = rates(lambda i: np.sum(buffers[i % 2]), 1.0 * size, "cpu", repeats)
    product = rates(lambda i: a @ b, 2.0 * n**3, "cpu", repeats)
    rows = [_row("copy", copy, "bytes/s", "fp32", size), _row("read", read, "bytes/s", "fp32", size)]
    return [*rows, _row("matmul", product, "flop/s", "fp32", a.nbytes)]


def headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The floors other files carry as attributes: `floor_copy_bytes_per_s`, `floor_read_bytes_per_s`, `floor_matmul_{dtype}_flop_per_s`."""
    found = {}
    for row in rows:
        if row["what"] in ("copy", "read"):
            found[f"floor_{row['what']}_bytes_per_s"] = row["value_median"]
        if row["what"] == "matmul":
            found[f"floor_matmul_{row['dtype']}_flop_per_s"] = row["value_median"]
    return found
