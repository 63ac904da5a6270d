"""GpuSpec: what a datasheet says about one accelerator. Rates that are learnt live elsewhere; these are only priors' anchors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sim.shown import Figures, Shown


@dataclass(frozen=True, slots=True, repr=False)
class GpuSpec(Shown):
    """One accelerator. Bandwidths in bytes/s per direction, flops dense (no sparsity), price in USD per GPU-hour.

    `flops` maps a dtype ("fp32", "fp16", "bf16", "int8", "fp8", "fp4") to dense flop/s, matrix units with 32-bit accumulation where
    there are such; a missing dtype is not supported in hardware. `memory_bytes` is what the driver reports as usable where that is
    known. `sibling_of` names the catalogue's GPU of the same chip, whose learnt rates are scaled by the datasheets. `origin` is
    "catalogue", or the file a user's own entry came from: no measured rate belongs to such a card.
    """

    name: str
    memory_bytes: float
    memory_bandwidth: float
    flops: Mapping[str, float] = field(hash=False)
    host_link_bandwidth: float
    gpu_link_bandwidth: float | None = None
    l2_bytes: float | None = None
    power_w: float | None = None  # limit of the card's power as it is sold
    gpus_per_node: int = 8
    nvlink_domain: int | None = None  # GPUs that direct links join without more being said; None: the node's, if there are such links
    unified_memory: bool = False  # CPU and GPU share one memory (GB10): there is no separate host tier
    price_per_hour: float | None = None
    price_date: str = ""
    price_source: str = ""
    source: str = ""
    note: str = ""
    aliases: tuple[str, ...] = field(default=())
    origin: str = "catalogue"
    sibling_of: str = ""
    matrix_units: str = ""  # "sm80", "wgmma" or "tcgen05": other GPUs' kernels leave part of them idle

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        price = [] if self.price_per_hour is None else [("USD/hour", f"{self.price_per_hour:g}")]
        return self.name, [("GB", f"{self.memory_bytes / 1e9:.1f}"), ("GB/s", f"{self.memory_bandwidth / 1e9:.0f}"), *price]
