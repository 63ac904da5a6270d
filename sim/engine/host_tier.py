"""Host RAM below the KV cache: options of vLLM's OffloadingConnector, and how long transfers take."""

from __future__ import annotations

from typing import Any, NamedTuple

from sim.engine.config import EngineConfig
from sim.errors import UsageError

LINK_SHARE = 0.8  # of the link's rate that copies reach: 24 to 25 GB/s of 31.5 on PCIe 4.0 x16
MOST_TRACKED = 64_000
_TIER = {"chunk_tokens": 0, "store_threshold": 0, "max_tracker_size": MOST_TRACKED}
HOST_OPTIONS: dict[str, Any] = {"host_blocks": 0, "host_gb_per_s": 25.0, "host_latency_us": 20.0, **_TIER}
HOST_NEEDS = dict.fromkeys(HOST_OPTIONS.keys() - {"host_blocks"}, ("host_blocks",)) | {"max_tracker_size": ("store_threshold",)}


class HostLink(NamedTuple):
    """Rate of copies between GPU and host RAM in each direction, and what one load takes beside it."""

    bytes_per_s: float
    latency_s: float


class HostTier(NamedTuple):
    """What host RAM keeps: `blocks` of KV, in chunks of so many blocks that are written, found and evicted as one. Chunks that were offered
    `store_threshold` times are written; offers of the `max_tracker_size` latest ones are counted.
    """

    blocks: int
    chunk: int
    store_threshold: int
    max_tracker_size: int

    @classmethod
    def of(cls, config: EngineConfig) -> HostTier:
        """Raises UsageError for absurd options."""
        options = HOST_OPTIONS | config.options
        if min(options[name] for name in HOST_OPTIONS) < 0 or not options["host_gb_per_s"]:
            raise UsageError("host RAM for KV: no option may be negative, and the rate must be above 0")
        if options["host_blocks"] and not config.enable_prefix_caching:
            raise UsageError("host RAM keeps prefix blocks and needs prefix caching")
        if not 1 <= options["max_tracker_size"] < 2**30:
            raise UsageError("max_tracker_size must be 1 chunk or more, and below 2**30")
        chunk, behind = divmod(int(options["chunk_tokens"]) or config.block_size, config.block_size)
        if behind:
            raise UsageError(f"a chunk of {options['chunk_tokens']} tokens in host RAM is no multiple of a KV block of {config.block_size}")
        if 0 < options["host_blocks"] < chunk:
            raise UsageError(f"{options['host_blocks']} KV blocks of host RAM hold no chunk of {options['chunk_tokens']} tokens")
        return cls(int(options["host_blocks"]), chunk, int(options["store_threshold"]), int(options["max_tracker_size"]))


def host_link(config: EngineConfig) -> HostLink:
    """The link that blocks take."""
    options = HOST_OPTIONS | config.options
    return HostLink(1e9 * options["host_gb_per_s"], 1e-6 * options["host_latency_us"])
