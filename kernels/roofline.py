"""Roofline microbenchmarks: the bandwidths and rates that bound the kernels, measured in the same run.

`measure()` returns one row each: name, value, unit (bytes_per_s, flops_per_s or s), median_s, p10_s, p90_s, repeats of the timed call,
bytes (read plus written on the device; across the link for h2d, d2h, host_read) and flops, 0 where none.

read: a kernel that only reads; update: one that reads and writes in place, as recurrent state does; copy: device to device;
matmul_bf16: a large product; launch: an empty kernel in a CUDA graph; h2d, d2h: pinned copies; host_read: a kernel that reads pinned
host memory. Buffers are several times the L2 cache. Bandwidths are decimal. RuntimeError without CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from kernels import timing

Row = dict[str, Any]


@triton.jit
def _read(x, out, n, BLOCK: tl.constexpr):
    i_p = tl.program_id(0).to(tl.int64)
    o = i_p * BLOCK + tl.arange(0, BLOCK)
    b_x = tl.load(x + o, mask=o < n, other=0)
    tl.store(out + i_p, tl.sum(b_x, 0))


@triton.jit
def _update(x, n, BLOCK: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    b_x = tl.load(x + o, mask=o < n, other=0)
    tl.store(x + o, b_x ^ 1, mask=o < n)


@triton.jit
def _empty(x):
    pass


def read_sum(x: torch.Tensor, out: torch.Tensor, block: int = 8192) -> None:
    """Sum each run of `block` int32 of `x` [n] (device or pinned host) into `out` [ceil(n / block)] int32, wrapping."""
    _read[(triton.cdiv(x.numel(), block),)](x, out, x.numel(), BLOCK=block, num_warps=8)


def update_in_place(x: torch.Tensor, block: int = 8192) -> None:
    """Flip the lowest bit of every int32 of `x` [n] in place: one read and one write of every byte."""
    _update[(triton.cdiv(x.numel(), block),)](x, x.numel(), BLOCK=block, num_warps=8)


def _row(name: str, call: Callable[[], object], repeats: int, n_bytes: int = 0, flops: int = 0, n_calls: int = 1) -> Row:
    graph = timing.capture([call], rounds=n_calls)
    timing.replay_s(graph)
    stats = timing.percentiles(np.asarray([timing.replay_s(graph) / n_calls for _ in range(repeats)]))
    if flops:
        value, unit = flops / stats["median_s"], "flops_per_s"
    elif n_bytes:
        value, unit = n_bytes / stats["median_s"], "bytes_per_s"
    else:
        value, unit = stats["median_s"], "s"
    return {"name": name, "value": value, "unit": unit, **stats, "bytes": n_bytes, "flops": flops}


def measure(device: str | torch.device = "cuda", repeats: int = 11, size_bytes: int = 2**32, link_bytes: int = 2**29) -> list[Row]:
    """All rows of `device`, in about three seconds. `size_bytes` per device buffer, `link_bytes` per host buffer."""
    if not torch.cuda.is_available():
        raise RuntimeError("roofline microbenchmarks need a CUDA device")
    with torch.cuda.device(device):
        return _memory(repeats, size_bytes) + _compute(repeats) + _link(repeats, link_bytes)


def _memory(repeats: int, size_bytes: int) -> list[Row]:
    x = torch.randint(0, 2**31 - 1, (size_bytes // 4,), dtype=torch.int32, device="cuda")
    sums = torch.empty(triton.cdiv(x.numel(), 2048), dtype=torch.int32, device="cuda")
    # The bound is what the fastest shape of the same access reaches.
    reads = [_row("read", lambda b=b: read_sum(x, sums, b), repeats, size_bytes) for b in (4096, 8192, 16384)]
    updates = [_row("update", lambda b=b: update_in_place(x, b), repeats, 2 * size_bytes) for b in (2048, 8192)]
    half = x.numel() // 2
    copy = _row("copy", lambda: x[half:].copy_(x[:half]), repeats, size_bytes)
    return [min(reads, key=lambda r: r["median_s"]), min(updates, key=lambda r: r["median_s"]), copy]


def _compute(repeats: int, size: int = 8192) -> list[Row]:
    # Random values: zeros draw less power and run faster than any real product does.
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    matmul = _row("matmul_bf16", lambda: torch.mm(a, b, out=out), repeats, flops=2 * size**3)
    launch = _row("launch", lambda: _empty[(1,)](out, num_warps=1), repeats, n_calls=512)
    return [matmul, launch]


def _link(repeats: int, link_bytes: int) -> list[Row]:
    host = torch.empty(link_bytes // 4, dtype=torch.int32, pin_memory=True)
    device = torch.randint(0, 2**31 - 1, (link_bytes // 4,), dtype=torch.int32, device="cuda")
    sums = torch.empty(triton.cdiv(host.numel(), 2048), dtype=torch.int32, device="cuda")
    host.copy_(device)
    return [
        _row("h2d", lambda: device.copy_(host, non_blocking=True), repeats, link_bytes),
        _row("d2h", lambda: host.copy_(device, non_blocking=True), repeats, link_bytes),
        _row("host_read", lambda: read_sum(host, sums), repeats, link_bytes),
    ]
