"""Rates of a deployment as a question asks for them: which posterior, served or stepped in process, and what is set of the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sim.cost.rates import RateDraws
from sim.engine.config import overlaps
from sim.engine.overlap import HostWork
from sim.errors import UsageError
from sim.files import text_of
from sim.rates import llamacpp_kernels
from sim.rates.host import Host
from sim.rates.load import load_rates, on_another_machine
from sim.rates.serving import NO_HOST, UNITS, HostRates, as_served, parse_overhead

if TYPE_CHECKING:
    from sim.study.deployment import Deployment

MOST_OVERHEAD_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class RateSource:
    """Source of rates and host latencies.

    `posterior` None: the packaged one. `served`: with the serving overhead of an engine that overlaps host work, of the file `overhead`
    (`simctl validate --save-overhead`) or the packaged one; else as stepped in process. `api_server`: with the API server's time.
    `host_scale`: time of the host over that of the measured ones, or a file of it (sim.rates.host); None: a host never seen, with a card
    of another owner (sim.rates.load.OWNERS_SD).
    `host_rates` sets seconds by name (sim.rates.serving.UNITS, and those of an iteration). `seed` is that of the draws.
    `known` rates are used instead of a posterior's; `host` latencies come with rates as they are, without any overhead.
    """

    posterior: str | Path | None = None
    served: bool = True
    overhead: str | Path | None = None
    api_server: bool = True
    host_scale: Host | float | str | Path | None = None
    host_rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    known: RateDraws | None = None
    host: HostRates | None = None

    def __post_init__(self) -> None:
        if self.overhead is not None and not self.served:
            raise UsageError("a serving overhead is of served rates, not of an engine stepped in process")
        if self.host_scale is not None and (self.overhead is not None or not self.served):
            raise UsageError("a host's scale is of the packaged serving overhead")
        known = [*UNITS, *(each.name for each in fields(HostWork))]
        if unknown := [name for name in self.host_rates if name not in known]:
            raise UsageError(f"no rate {unknown[0]!r}; there are {', '.join(known)}")

    def of(self, deployment: Deployment, draws: int) -> tuple[RateDraws, HostRates]:
        """Rates and host latencies of a deployment. Raises what load_rates raises, SimctlError for a file that is no overhead."""
        rates, host = self.known, self.host or HostRates()
        if rates is None:
            rates = load_rates(deployment, posterior=self.posterior, draws=draws, seed=self.seed)
            if self.served and self.posterior is None and self.overhead is None and self.host_scale is None:
                rates = on_another_machine(rates, self.seed)
        if self.served and self.host is None and llamacpp_kernels.stands_in(deployment, rates):
            if self.overhead is not None or self.host_scale is not None:
                raise UsageError(f"no llama.cpp server was measured on {deployment.gpu.name}: nothing of it scales with a host's speed")
        elif self.served and self.host is None:
            learnt = None
            if self.overhead is not None:
                learnt = parse_overhead(text_of(Path(self.overhead), MOST_OVERHEAD_BYTES), str(self.overhead))
            speed, limits = None if self.host_scale is None else Host.of(self.host_scale), deployment.limits
            speed = speed.eager() if speed is not None and limits.enforce_eager else speed
            rates, host = as_served(rates, learnt, speed, limits.engine)
        host = host if self.api_server else replace(NO_HOST, work=host.work)
        return rates, with_host_rates(host, self.host_rates)


def ahead(d: Deployment) -> bool:
    """Whether the deployment's engine decides an iteration while the one before it runs."""
    return overlaps(d.limits.engine, d.limits.options, d.limits.engine_version)


def with_host_rates(host: HostRates, seconds: Mapping[str, float]) -> HostRates:
    """Host latencies with those that are given. UsageError for a time that is none."""
    for name, value in seconds.items():
        source = host.source.after(f"{name} as given")
        if name in UNITS:
            host = replace(host, source=source, **{name: value})  # type: ignore[arg-type]
        else:
            host = replace(host, source=source, work=replace(host.work, **{name: value}))
    return host
