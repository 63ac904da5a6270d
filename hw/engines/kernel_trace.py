"""PyTorch's profiler around one call: the kernels of a CUDA device, or the operators of a CPU with the time that is their own.

The purpose of a kernel follows from its name. Names are those of vLLM 0.23 on CUDA (cuBLAS and CUTLASS products, FlashAttention, Triton
experts) and of PyTorch's operators on a CPU. A name that says nothing of these is rest: norms, activations, sampling, fused operators.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

KINDS = ("matmul", "attention", "experts", "copies", "rest")
# Asked in this order: a fused mixture of experts is GEMMs, too, and FlashAttention is built from CUTLASS.
_SAYS = (
    ("attention", ("flashattn", "flash::prepare", "flash_attn", "flash_fwd", "attention", "attn_fwd", "fmha", "paged_attn", "mla_decode")),
    ("experts", ("fused_moe", "moe::", "moe_", "grouped_gemm", "group_gemm", "grouped_mm")),
    ("matmul", ("nvjet", "gemm", "gemv", "splitkreduce", "cutlass::kernel", "wgmma", "cublas", "aten::mm", "aten::addmm", "aten::bmm",
                "aten::linear", "aten::matmul", "mkldnn_linear", "onednn", "scaled_mm")),
    ("copies", ("memcpy", "memset", "aten::copy_")),
)  # fmt: skip
# Set before the first profile: CUPTI taken down between profiles loses the kernels of CUDA graphs captured before.
_KEEP_CUPTI = {"DISABLE_CUPTI_LAZY_REINIT": "1", "TEARDOWN_CUPTI": "0"}


@dataclass(frozen=True, slots=True)
class Event:
    """A kernel, copy or operator as it ran: start and end on one clock, and the time that is its own (without what it called)."""

    start_us: float
    end_us: float
    own_us: float
    name: str


class Recorder(Protocol):
    """Runs something and says which kernels ran."""

    def __call__(self, step: Callable[[], Any]) -> tuple[Any, list[Event]]: ...


def kind_of(name: str) -> str:
    """One of KINDS. A kernel that writes keys and values into the cache, or that torch.compile fused (named after all it was fused from,
    products and attention never among it), is rest whatever else its name speaks of.
    """
    lowered = name.lower()
    if "reshape_and_cache" in lowered or lowered.startswith(("triton_poi_", "triton_red_", "triton_per_")):
        return "rest"
    return next((kind for kind, words in _SAYS if any(word in lowered for word in words)), "rest")


def recorder(device: str) -> Recorder:
    """A recorder for "cuda" or "cpu". Called before an engine starts: the profiler must be up before CUDA graphs are captured."""
    os.environ.update(_KEEP_CUPTI)
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    wait: Callable[[], Any] = torch.cuda.synchronize if on_gpu else lambda: None

    def record(step: Callable[[], Any]) -> tuple[Any, list[Event]]:
        wait()
        with profile(activities=[activity]) as profiler:
            result = step()
            wait()
        raw = since_first(
            (e.start_ns(), e.duration_ns(), e.name(), 0 if on_gpu else e.start_thread_id())
            for e in profiler.profiler.kineto_results.events()
            if not on_gpu or "CUDA" in str(e.device_type())
        )
        if on_gpu:  # kernels run side by side, never inside one another
            return result, [Event(s / 1e3, (s + d) / 1e3, d / 1e3, n) for s, d, n, _ in raw]
        return result, own_times(raw)

    record(lambda: torch.zeros(8, device=device).add_(1))
    return record


def since_first(raw: Iterable[tuple[int, int, str, int]]) -> list[tuple[int, int, str, int]]:
    """The same (start ns, duration ns, name, thread), starts counted from the first: of the time since 1970, float microseconds hold
    quarters only.
    """
    events = list(raw)
    first = min((start for start, *_ in events), default=0)
    return [(start - first, duration, name, thread) for start, duration, name, thread in events]


def own_times(raw: Sequence[tuple[int, int, str, int]]) -> list[Event]:
    """Events from (start ns, duration ns, name, thread): operators call others on their thread, whose time is not their own."""
    events = []
    for thread in sorted({t for *_, t in raw}):
        inside: list[list[Any]] = []  # the operators still open, each as [end, start, own, name]
        for start, duration, name, _ in sorted((r for r in raw if r[3] == thread), key=lambda r: (r[0], -r[1])):
            while inside and inside[-1][0] <= start:
                events.append(_closed(inside.pop()))
            if inside:
                inside[-1][2] -= min(start + duration, inside[-1][0]) - start
            inside.append([start + duration, start, duration, name])
        events += [_closed(entry) for entry in inside]
    return events


def _closed(entry: list[Any]) -> Event:
    end, start, own, name = entry
    return Event(start / 1e3, end / 1e3, own / 1e3, name)
