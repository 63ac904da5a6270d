"""Host RAM below the KV cache: options of vLLM's OffloadingConnector, and how long transfers take."""

from __future__ import annotations

from typing import NamedTuple

from sim.engine.config import EngineConfig
from sim.errors import UsageError

LINK_SHARE = 0.8  # of the link's rate that copies reach: 24 to 25 GB/s of 31.5 on PCIe 4.0 x16
HOST_OPTIONS = {"host_blocks": 0, "host_gb_per_s": 25.0, "host_latency_us": 20.0}
HOST_NEEDS = dict.fromkeys(("host_gb_per_s", "host_latency_us"), ("host_blocks",))


class HostLink(NamedTuple):
    """Rate of copies between GPU and host RAM in each direction, and what one load takes beside it."""

    bytes_per_s: float
    latency_s: float


def host_blocks(config: EngineConfig) -> int:
    """KV blocks that host RAM keeps. Raises UsageError for absurd options."""
    options = HOST_OPTIONS | config.options
    if min(options[name] for name in HOST_OPTIONS) < 0 or not options["host_gb_per_s"]:
        raise UsageError("host RAM for KV: blocks and latency must not be negative, and the rate must be above 0")
    if options["host_blocks"] and not config.enable_prefix_caching:
        raise UsageError("host RAM keeps prefix blocks and needs prefix caching")
    return int(options["host_blocks"])


def host_link(config: EngineConfig) -> HostLink:
    """The link that blocks take."""
    options = HOST_OPTIONS | config.options
    return HostLink(1e9 * options["host_gb_per_s"], 1e-6 * options["host_latency_us"])
