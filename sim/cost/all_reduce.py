"""All-reduce: bytes that a GPU's link carries for one, by group and message size.

    small messages   (N - 1) b            one-shot: every GPU reads all others' (vLLM's custom all-reduce)
    large messages   group(N) b           in halves over the ring, or in the switch
    beyond 128 MiB     0.63 group(N)      for each byte more, on those chips: NCCL goes on gaining

for a message of b bytes over N GPUs, in units of what two GPUs move: b. `group` is measured: time of 8 to 128 MB over that of two GPUs
(kernel tables of A100, H100, H200 and B200; one machine each). A switch that sums (Hopper) makes eight GPUs cheaper than four. What links
over PCIe cost is in the rates (`sim.rates.links`). The larger of both counts, and one-shot up to its largest message: the time never falls
when a byte is added.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from sim.specs.gpu import GpuSpec

# vLLM's custom all-reduce: one-shot below these sizes, by GPUs in the group.
ONE_SHOT_BYTES = {4: 524_288.0, 8: 262_144.0}
GROUPS = {
    "A100-80G": {4: 1.35, 8: 1.55},
    "H100": {4: 1.21, 8: 1.14},
    "H200": {4: 1.22, 8: 1.15},
    "B200": {4: 1.23, 8: 1.38},
}
# Share of a byte's time beyond so many: H100s, up to 1 GiB. Left out, A100s are 1 % off, H200s 2 to 15, B200s 5 to 12 (22 to 59 before).
LARGE_BYTES, LARGE_SHARE = 2.0**27, 0.63


def _measured(gpu: GpuSpec | None) -> dict[int, float] | None:
    return None if gpu is None else GROUPS.get(gpu.name) or GROUPS.get(gpu.sibling_of)


@lru_cache(maxsize=256)
def group_factor(gpus: int, gpu: GpuSpec | None) -> float:
    """Bytes per GPU of a large all-reduce over `gpus`, per byte of the message: measured on the GPU or its chip, else of a ring.

    Between measured groups as the ring grows.
    """
    ring = 2.0 * (gpus - 1) / gpus
    known = _measured(gpu)
    if known is None or gpus <= 2:
        return ring
    nearest = min(known, key=lambda n: (abs(n - gpus), n))
    return known[nearest] * ring / (2.0 * (nearest - 1) / nearest)


def one_shot(gpus: int) -> tuple[float, float]:
    """(messages that each GPU reads, largest message in bytes) of the one-shot all-reduce; none for two GPUs, where both are alike."""
    limit = next((size for most, size in ONE_SHOT_BYTES.items() if 2 < gpus <= most), 0.0)
    return float(gpus - 1), limit


def wire_bytes(message_bytes: Any, gpus: int, gpu: GpuSpec | None) -> Any:
    """Bytes per GPU of an all-reduce of so many bytes (a number or an array) over `gpus`."""
    saved, beyond = 1.0 - LARGE_SHARE if _measured(gpu) else 0.0, message_bytes - LARGE_BYTES
    large = (message_bytes - saved * beyond * (beyond > 0)) * group_factor(gpus, gpu)
    reads, limit = one_shot(gpus)
    if not limit:
        return large
    if isinstance(message_bytes, (float, int)):
        return max(large, reads * min(message_bytes, limit))
    return np.maximum(large, reads * np.minimum(message_bytes, limit))
