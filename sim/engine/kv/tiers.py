"""KV blocks below HBM: contents evicted from the GPU fall to host RAM, from there to disk, and are reloaded instead of recomputed.

Tiers are inclusive (a reloaded block stays below until it is evicted there) and each is least recently used. Writing down is taken to hide
behind compute; reloading lengthens the iteration that admits the request by what the overlap does not hide.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.kv.cache import KvCacheManager
from sim.errors import UsageError


@dataclass(frozen=True, slots=True)
class Tier:
    """One place below HBM: how many blocks it holds, and how fast they come back."""

    name: str
    blocks: int
    bytes_per_s: float
    latency_s: float

    def reload_s(self, blocks: int, block_bytes: float) -> float:
        """Seconds to bring `blocks` blocks back; one latency per iteration, transfers are batched."""
        return self.latency_s + blocks * block_bytes / self.bytes_per_s if blocks else 0.0


# Names of the options, and defaults where one has to be assumed: a PCIe 4.0 x16 link at what copies reach of it, a data-centre NVMe drive.
TIER_OPTIONS = {
    "host_blocks": 0.0,
    "host_gb_per_s": 25.0,
    "host_latency_us": 20.0,
    "disk_blocks": 0.0,
    "disk_gb_per_s": 5.0,
    "disk_latency_us": 100.0,
    "tier_overlap": 0.0,
}
TIER_NEEDS = {
    name: (f"{name.partition('_')[0]}_blocks",) if name != "tier_overlap" else ("host_blocks", "disk_blocks") for name in TIER_OPTIONS
}


def tiers_of(config: EngineConfig) -> tuple[Tier, ...]:
    """The tiers that a config's options ask for, nearest first. Raises UsageError for absurd ones."""
    value = {name: float(config.options.get(name, default)) for name, default in TIER_OPTIONS.items()}
    if any(number < 0 for number in value.values()) or value["tier_overlap"] > 1:
        raise UsageError("KV tiers: sizes, rates and latencies must not be negative, and tier_overlap must lie in [0, 1]")
    found = []
    for name in ("host", "disk"):
        if not value[f"{name}_blocks"]:
            continue
        if not value[f"{name}_gb_per_s"]:
            raise UsageError(f"KV tiers: {name}_gb_per_s must be above 0")
        rate, latency = 1e9 * value[f"{name}_gb_per_s"], 1e-6 * value[f"{name}_latency_us"]
        found.append(Tier(name, int(value[f"{name}_blocks"]), rate, latency))
    if found and not config.enable_prefix_caching:
        raise UsageError("KV tiers hold prefix blocks and need prefix caching")
    return tuple(found)


def tier_hit_rates(schedulers: Sequence[object]) -> dict[str, float]:
    """Shares of looked-up prefix blocks found in each place, over replicas, as `kv_hit_rate_host`; empty without tiers."""
    managers = [kv for kv in (getattr(each, "kv", None) for each in schedulers) if isinstance(kv, TieredKvCacheManager)]
    lookups = sum(kv.lookups for kv in managers)
    names = managers[0].hits if managers else {}
    return {f"kv_hit_rate_{name}": sum(kv.hits[name] for kv in managers) / lookups if lookups else 0.0 for name in names}


class TieredKvCacheManager(KvCacheManager):
    """The KV manager with tiers under it. `hits` counts the blocks found when a request starts, by place ("hbm" first)."""

    def __init__(self, num_blocks: int, block_size: int, tiers: Sequence[Tier]) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=True)
        self.tiers = tuple(tiers)
        self.lookups = 0
        self.hits = dict.fromkeys(["hbm", *(tier.name for tier in tiers)], 0)
        self._contents: list[OrderedDict[Hashable, None]] = [OrderedDict() for _ in tiers]
        self._reloaded = [0] * len(tiers)

    def lower_hits(self, request: Request, start: int) -> int:
        """Number of the request's blocks from the `start`-th on that are in some tier, without a gap."""
        count = 0
        for index in range(start, (request.known_tokens - 1) // self.block_size):
            if self._place(self.block_hash(request, index)) is None:
                break
            count += 1
        return count

    def reload(self, request: Request, start: int, count: int) -> None:
        """Bring back `count` of the request's blocks from the `start`-th on, and book the lookup."""
        self.lookups += (request.known_tokens - 1) // self.block_size
        self.hits["hbm"] += start
        for index in range(start, start + count):
            content = self.block_hash(request, index)
            place = self._place(content)
            assert place is not None
            self._contents[place].move_to_end(content)
            self._reloaded[place] += 1
            self.hits[self.tiers[place].name] += 1

    def take_reloads(self) -> tuple[int, ...]:
        """Blocks reloaded by tier since the last call; empty when none."""
        if not any(self._reloaded):
            return ()
        counts, self._reloaded = tuple(self._reloaded), [0] * len(self.tiers)
        return counts

    def _place(self, content: Hashable) -> int | None:
        return next((place for place, contents in enumerate(self._contents) if content in contents), None)

    def _forget(self, block: int) -> None:
        content = self._content[block]
        super()._forget(block)
        if content not in self._block_of:
            self._put(0, content)

    def _put(self, place: int, content: Hashable) -> None:
        if place == len(self.tiers):
            return
        contents = self._contents[place]
        contents[content] = None
        contents.move_to_end(content)
        if len(contents) > self.tiers[place].blocks:
            oldest, _ = contents.popitem(last=False)
            self._put(place + 1, oldest)
