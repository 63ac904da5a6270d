"""Roofline microbenchmarks: copy and read bandwidth, GEMMs by dtype, launches, the host link, all-reduce over several GPUs.

Each figure is the median of repeats on rotating buffers; the inputs are random, since zeros run faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hw.artifact import table
from hw.journal import Journal
from hw.pace import seconds_of, summarize
from hw.suites import all_reduce_sizes as all_reduce
from sim.errors import UsageError

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


def _product(a: Any, b: Any, _: int) -> Any:
    return a @ b


def _copy(source: Any, target: Any, _: int) -> Any:
    return target.copy_(source, non_blocking=True)


def rates(work: Callable[[int], Any], amount: float, device: str, repeats: int) -> list[float]:
    """amount / seconds of each repeat, after two that are not counted. `work` gets the repeat's number to rotate buffers by."""
    return [amount / seconds_of(partial(work, repeat), device) for repeat in range(repeats + 2)][2:]


def _row(what: str, samples: list[float], unit: str, dtype: str = "", size: int = 0) -> dict[str, Any]:
    return {"what": what, "dtype": dtype, "size_bytes": size, "gpus": 1, "unit": unit, **summarize(samples, "value")}


def _memory(copy: Callable[[int], Any], read: Callable[[int], Any], device: str, size: int, repeats: int) -> list[dict[str, Any]]:
    """Copy (bytes read plus written) and read bandwidth over buffers of `size` bytes."""
    copied, seen = rates(copy, 2.0 * size, device, repeats), rates(read, 1.0 * size, device, repeats)
    return [_row("copy", copied, "bytes/s", "fp32", size), _row("read", seen, "bytes/s", "fp32", size)]


def on_gpu(size: int, repeats: int = 20) -> list[dict[str, Any]]:
    """Copy and read bandwidth of the device."""
    import torch

    buffers = [torch.randn(size // 4, device="cuda") for _ in range(2)]
    target = torch.empty_like(buffers[0])
    return _memory(lambda i: target.copy_(buffers[i % 2]), lambda i: torch.sum(buffers[i % 2]), "cuda", size, repeats)


def matmul(n: int, repeats: int) -> list[dict[str, Any]]:
    """Square products of size n by dtype; fp8 (e4m3, bf16 out) where the device has it."""
    import torch

    rows = []
    for name, dtype in {"bf16": torch.bfloat16, "fp16": torch.float16}.items():
        a, b = torch.randn(n, n, device="cuda").to(dtype), torch.randn(n, n, device="cuda").to(dtype)
        samples = rates(partial(_product, a, b), 2.0 * n**3, "cuda", repeats)
        rows.append(_row("matmul", samples, "flop/s", name, a.numel() * a.element_size()))
    if torch.cuda.get_device_capability() >= (8, 9):
        one = torch.ones((), device="cuda")
        a = torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn)
        b = torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn).t()
        multiply = lambda i: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)  # noqa: E731
        rows.append(_row("matmul", rates(multiply, 2.0 * n**3, "cuda", repeats), "flop/s", "fp8", a.numel()))
    return rows


def launches(count: int = 500, repeats: int = 10) -> list[dict[str, Any]]:
    """Seconds per tiny kernel: launched one by one from Python, and replayed from a captured graph."""
    import torch

    x = torch.randn(256, device="cuda")

    def burst() -> None:
        for _ in range(count):
            x.add_(1e-9)

    burst()
    eager = [seconds_of(burst, "cuda") / count for _ in range(repeats)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        burst()
    graph.replay()
    replay = [seconds_of(graph.replay, "cuda") / count for _ in range(repeats)]
    return [_row("launch_eager", eager, "s"), _row("launch_graph", replay, "s")]


def host_link(sizes: tuple[int, ...] = (2**12, 2**16, 2**20, 2**24, 2**28), repeats: int = 10) -> list[dict[str, Any]]:
    """Pinned host-to-device and device-to-host copies by size: bytes/s, latency included."""
    import torch

    rows = []
    for size in sizes:
        host, device = torch.empty(size, dtype=torch.uint8, pin_memory=True), torch.empty(size, dtype=torch.uint8, device="cuda")
        host.random_()
        up = rates(partial(_copy, host, device), float(size), "cuda", repeats)
        down = rates(partial(_copy, device, host), float(size), "cuda", repeats)
        rows += [_row("host_to_device", up, "bytes/s", "u8", size), _row("device_to_host", down, "bytes/s", "u8", size)]
    return rows


def run(job: Any, journal: Journal, attrs: dict[str, Any]) -> None:
    """All floors of the device, or all-reduce alone."""
    rows = over_gpus() if job.suite == "all-reduce" else measure(job.device)
    if not rows:
        raise UsageError("suite all-reduce needs several GPUs")
    journal.add(job.suite, rows=rows)
    attrs["finished"] = 1


def dataset(records: list[dict[str, Any]], attrs: dict[str, Any]) -> Any:
    """The journal as an xarray Dataset along `row`."""
    import xarray as xr

    return xr.Dataset(table("row", records[-1]["rows"], DESCRIBED), attrs=attrs)


def measure(device: str, *, quick: bool = False) -> list[dict[str, Any]]:
    """All floors of `device` as rows of DESCRIBED; `quick` keeps copy, read and the main matmul (about a second)."""
    if device == "cpu":
        return on_host()
    rows = on_gpu(2**30 if quick else 2**31) + matmul(8192, 5 if quick else 20)
    if not quick:
        rows += launches() + host_link()
    import torch

    torch.cuda.empty_cache()
    return rows if quick else rows + over_gpus()


def over_gpus() -> list[dict[str, Any]]:
    """Rows of all-reduce over all GPUs of this machine; none where there is one."""
    import torch

    count = torch.cuda.device_count()
    return all_reduce.measure(count) if count > 1 else []


def on_host(size: int = 2**26, n: int = 512, repeats: int = 10) -> list[dict[str, Any]]:
    """The CPU's floors, by numpy: copy, read and an fp32 product."""
    rng = np.random.default_rng(0)
    buffers = [rng.standard_normal(size // 4, dtype=np.float32) for _ in range(2)]
    target = np.empty_like(buffers[0])
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    rows = _memory(lambda i: np.copyto(target, buffers[i % 2]), lambda i: np.sum(buffers[i % 2]), "cpu", size, repeats)
    multiply = rates(lambda i: a @ b, 2.0 * n**3, "cpu", repeats)
    return [*rows, _row("matmul", multiply, "flop/s", "fp32", a.nbytes)]


def headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The floors other files carry as attributes: `floor_copy_bytes_per_s`, `floor_read_bytes_per_s`, `floor_matmul_{dtype}_flop_per_s`."""
    names = {"copy": "floor_copy_bytes_per_s", "read": "floor_read_bytes_per_s", "matmul": "floor_matmul_{dtype}_flop_per_s"}
    return {names[row["what"]].format(**row): row["value_median"] for row in rows if row["what"] in names}
