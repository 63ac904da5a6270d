"""Fleets: pools of deployments, the network between them, what happens to replicas, and how clients insist."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sim.cluster.autoscale import Scaling
from sim.cluster.clients import NO_RETRIES, Retries
from sim.cluster.encoders import EncoderSpec
from sim.cluster.kv_moves import StoreSpec
from sim.cluster.network import NETWORK, NetworkSpec
from sim.cluster.pools import DECODE, FETCHES, PREFILL, ROLES, SERVE, Pool
from sim.cluster.replica import Change, Engine
from sim.cluster.router import make_router
from sim.deployment.memory import sequence_bytes
from sim.engine.config import EngineConfig
from sim.errors import UsageError
from sim.rates.serving import HostRates
from sim.shown import Figures, Shown
from sim.specs.precision import ACTIVATION_BYTES
from sim.study.deployment import Deployment
from sim.workload.trace import Trace

# Bytes per second each way of one replica, by line rate; NVLink of an H100: 900 GB/s over both ways.
LINKS = {"nvlink": 450e9, "rdma-400": 50e9, "rdma-200": 25e9, "ethernet-100": 12.5e9, "ethernet-25": 3.125e9, "ethernet-10": 1.25e9}
RESERVE_TOKENS = 512


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One pool (sim.cluster.pools): `deployment.replicas` are up at first, up to `max_replicas` with `scaling`.

    `bytes_per_s` is the bandwidth of each replica's link, out and in. With `overlaps`, KV leaves layer by layer while prefill goes on. A
    decode replica keeps room for `reserve_tokens` of output per request. No prompt is longer than `max_prompt_tokens` (None: any is taken).
    `fetch` says where a replica gets KV of a prompt that its cache lacks (None: nowhere). Beyond `max_in_flight` requests per replica,
    requests wait at the router, and are taken by priority and in fair shares of tokens by their tenants' `weights` (1 where none is given).
    """

    deployment: Deployment
    name: str = "pool"
    role: str = SERVE
    max_replicas: int | None = None
    max_prompt_tokens: int | None = None
    bytes_per_s: float = LINKS["rdma-400"]
    overlaps: bool = False
    reserve_tokens: int = RESERVE_TOKENS
    scaling: Scaling | None = None
    fetch: str | None = None
    max_in_flight: int | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    adapter_load_s: float | None = None  # None: its bytes over the host's link

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UsageError(f"pool {self.name}: a pool's role is {', '.join(ROLES)}, not {self.role!r}")
        if self.fetch not in (None, *FETCHES):
            raise UsageError(f"pool {self.name}: KV is fetched from {' or '.join(FETCHES)}, not {self.fetch!r}")
        if not all(weight > 0 for weight in self.weights.values()) or (self.max_in_flight is not None and self.max_in_flight < 1):
            raise UsageError(f"pool {self.name}: weights of tenants are above 0, and max_in_flight is at least 1")
        if self.weights and self.max_in_flight is None:
            raise UsageError(f"pool {self.name}: tenants share where requests wait at the router: give max_in_flight, too")
        if not self.bytes_per_s > 0:
            raise UsageError(f"pool {self.name}: a link needs a bandwidth above 0, got {self.bytes_per_s:g} bytes/s")
        if self.most < self.deployment.replicas or self.deployment.replicas < 1:
            raise UsageError(f"pool {self.name}: at least one replica, and max_replicas {self.most} is at least that many")
        if self.scaling is None and self.most > self.deployment.replicas:
            raise UsageError(f"pool {self.name}: max_replicas is for pools with scaling")

    @property
    def most(self) -> int:
        """Replicas that there can be."""
        return self.deployment.replicas if self.max_replicas is None else self.max_replicas

    def kv_bytes(self, tokens: int) -> float:
        """Bytes of the KV of a prompt of so many tokens."""
        d = self.deployment
        return d.tp * sum(sequence_bytes(d.model, tokens, d.precision, d.limits.attention, d.tp))

    def _adapter_load_s(self) -> float:
        """Seconds until a LoRA adapter that a replica does not hold is on its GPUs, from the host's memory where nothing is given."""
        d = self.deployment
        if self.adapter_load_s is not None or d.limits.lora is None:
            return self.adapter_load_s or 0.0
        return d.limits.lora.params(d.model) * ACTIVATION_BYTES / d.gpu.host_link_bandwidth

    def pool(self, config: EngineConfig, host: HostRates, engines: Sequence[Engine], spare: Callable[[], Engine]) -> Pool:
        """The pool to run; `engines` are `most` engines of this `config`."""
        d = self.deployment
        return Pool(
            engines,
            make_router(d.router, self.most, config.block_size, config.num_gpu_blocks, d.router_options),
            host,
            name=self.name,
            role=self.role,
            max_prompt_tokens=float("inf") if self.max_prompt_tokens is None else self.max_prompt_tokens,
            kv_tokens=config.kv_capacity_tokens,
            reserve_tokens=self.reserve_tokens,
            kv_bytes=self.kv_bytes,
            nic_bytes_per_s=self.bytes_per_s,
            layers=d.model.layers,
            overlaps=self.overlaps,
            block_size=config.block_size,
            fetch=self.fetch,
            max_in_flight=float("inf") if self.max_in_flight is None else self.max_in_flight,
            weights=self.weights,
            later=self.most - d.replicas,
            spare=spare,
            model=d.model.name,
            adapters=d.limits.lora.adapters if d.limits.lora else 0,
            adapter_load_s=self._adapter_load_s(),
        )


@dataclass(frozen=True, slots=True, repr=False)
class Fleet(Shown):
    """Pools in the order in which requests look for one. Replicas are numbered through them, those of `max_replicas` included.

    `loses`: what a failed replica had is lost, and not sent on to another. `store` holds KV that all replicas share. Images
    pass `encoders` first. Raises UsageError for
    pools that do not go together.
    """

    pools: tuple[PoolSpec, ...]
    network: NetworkSpec = NETWORK
    changes: tuple[Change, ...] = ()
    retries: Retries = NO_RETRIES
    loses: bool = False
    store: StoreSpec | None = None
    encoders: EncoderSpec | None = None
    names: tuple[str, ...] = field(init=False)

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        pools = [(pool.name, f"{pool.role}, {pool.deployment.shown()[0]}") for pool in self.pools]
        return f"{len(pools)} pools", pools

    def __post_init__(self) -> None:
        names = tuple(pool.name for pool in self.pools)
        object.__setattr__(self, "names", names)
        if not names:
            raise UsageError("a fleet needs at least one pool")
        if len(set(names)) < len(names):
            raise UsageError(f"pools need names of their own: {', '.join(names)}")
        roles = [pool.role for pool in self.pools]
        if (DECODE in roles) != (PREFILL in roles) or roles.count(DECODE) > 1:
            raise UsageError("prefill pools need one decode pool, and a decode pool a prefill pool")
        decode = next((pool.deployment for pool in self.pools if pool.role == DECODE), None)
        for pool in self.pools:
            if decode and pool.role == PREFILL and (pool.deployment.model, pool.deployment.precision) != (decode.model, decode.precision):
                raise UsageError(f"pool {pool.name}: KV goes to a decode pool of the same model and dtypes")
        for change in self.changes:
            if not 0 <= change.replica < self.replicas:
                raise UsageError(f"there is no replica {change.replica}: there are {self.replicas}")

    @property
    def replicas(self) -> int:
        """Replicas that there can be."""
        return sum(pool.most for pool in self.pools)

    def check_used(self, trace: Trace) -> None:
        """Raises UsageError for a pool to which no request can come, weights of tenants that no request is of, and images without encoders
        or encoders without images.
        """
        if bool(trace.images) != bool(self.encoders):
            raise UsageError(
                "encoders: no request has images" if self.encoders else "requests have images: a fleet file says how long its encoders take"
            )
        entries: list[PoolSpec] = []
        for pool in self.pools:
            own, most = pool.deployment.model.name, pool.max_prompt_tokens or math.inf
            before = (each for each in entries if own == each.deployment.model.name or own not in trace.models)
            if pool.role != DECODE and (first := next((each for each in before if (each.max_prompt_tokens or math.inf) >= most), None)):
                raise UsageError(f"pool {pool.name}: no request comes to it: pool {first.name} before it takes all that it would")
            entries += [pool] if pool.role != DECODE else []
            if pool.weights and not set(pool.weights) & set(trace.tenants):
                raise UsageError(f"pool {pool.name}: no request is of tenant {', '.join(pool.weights)}: a trace names tenants")

    @property
    def scaling(self) -> list[Scaling]:
        """The scalings, each of the pool at its place."""
        from dataclasses import replace

        return [replace(pool.scaling, pool=place) for place, pool in enumerate(self.pools) if pool.scaling]

    @property
    def plain(self) -> bool:
        """Whether the fast path can take it: nobody fails in the middle of a stretch, or asks what caches hold there."""
        asks = self.store is not None or any(pool.fetch or "cache" in pool.deployment.router_options.values() for pool in self.pools)
        return not asks and not any(change.action == "fail" for change in self.changes)


def fleet_of_one(deployment: Deployment) -> Fleet:
    """A deployment as a fleet of one pool."""
    return Fleet((PoolSpec(deployment),))
