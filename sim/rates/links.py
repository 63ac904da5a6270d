"""Rates of GPU-to-GPU traffic by the links that it crosses: declared priors for all but direct links.

    nvlink    the GPU's own rates, learnt or declared
    peer      peer-to-peer over PCIe: 70 % of the link, 15 us an operation
    roots     peers on two root complexes: half of that, 20 us
    host      through host memory: every byte crosses PCIe twice, in copies that a processor starts: 20 % of the link, 30 us
    network   half of a named network's rate, and its latency or 100 us; unnamed, 9 GB/s per GPU, between 25 Gb Ethernet (3) and 400 Gb
              InfiniBand (30), and 120 us

Latencies are those of an all-reduce of a few kB.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import RateDraws
from sim.specs.gpu import GpuSpec
from sim.specs.parallel import Link, Parallel
from sim.specs.topology import Topology, Way

COMM = ("comm_latency_s", "comm_bytes_per_s")


class LinkCost(NamedTuple):
    """Medians and log sds of an operation's latency and of a GPU's bandwidth."""

    latency_s: float
    latency_sd: float
    bytes_per_s: float
    bytes_sd: float
    words: str


def link_cost(way: Way, gpu: GpuSpec, topology: Topology) -> LinkCost:
    """Cost of crossing such a link on this GPU."""
    pcie = gpu.host_link_bandwidth
    if way == "nvlink":
        return LinkCost(9e-6, 0.25, 0.6 * (gpu.gpu_link_bandwidth or pcie), 0.3, "direct links")
    if way == "peer":
        return LinkCost(15e-6, 0.4, 0.7 * pcie, 0.3, "PCIe with peer access")
    if way == "roots":
        return LinkCost(20e-6, 0.5, 0.35 * pcie, 0.4, "PCIe with peer access through two root complexes")
    if way == "host":
        return LinkCost(30e-6, 0.5, 0.2 * pcie, 0.5, "host memory, without peer access")
    if topology.network is None:
        return LinkCost(120e-6, 0.6, 9e9, 0.9, "a network between nodes that nobody named")
    return LinkCost(topology.network_latency_s or 100e-6, 0.5, 0.5 * topology.network, 0.35, "the network between nodes")


def _crossed(parallel: Parallel, tp: int, topology: Topology) -> dict[str, Way]:
    """The slowest link of each kind of traffic there is."""
    kinds = {"all_reduce": tp}
    if parallel.dp > 1:
        kinds["all_to_all"] = tp * parallel.dp
    if parallel.pp > 1:
        kinds["hand_over"] = tp * parallel.pp
    return {kind: topology.way(gpus) for kind, gpus in kinds.items() if gpus > 1}


def slowest(parallel: Parallel, tp: int, gpu: GpuSpec, topology: Topology) -> Way:
    """The link by whose rates a replica's traffic is counted."""
    ways = set(_crossed(parallel, tp, topology).values()) or {"nvlink"}
    return max(ways, key=lambda way: link_cost(way, gpu, topology).latency_s)


def linked(parallel: Parallel, tp: int, gpu: GpuSpec, topology: Topology) -> Parallel:
    """`parallel` with each kind of traffic in units of the slowest link's."""
    base = link_cost(slowest(parallel, tp, gpu, topology), gpu, topology)
    crossed = _crossed(parallel, tp, topology)

    def link(kind: str) -> Link:
        own = link_cost(crossed[kind], gpu, topology) if kind in crossed else base
        return Link(own.latency_s / base.latency_s, base.bytes_per_s / own.bytes_per_s)

    return replace(parallel, all_reduce=link("all_reduce"), all_to_all=link("all_to_all"), hand_over=link("hand_over"))


def over_links(rates: RateDraws, way: Way, gpu: GpuSpec, topology: Topology, seed: int = 0) -> RateDraws:
    """Rates whose GPU-to-GPU traffic goes this way: as they are over direct links, and where they were measured on this GPU over links that
    nobody named otherwise.
    """
    own = rates.sources.get("comm_latency_s")
    if way == "nvlink" or (way != "network" and not topology.source and own is not None and own.measured and own.gpu == gpu.name):
        return rates
    cost = link_cost(way, gpu, topology)
    normal = np.random.default_rng([seed, 80]).standard_normal((2, rates.count))
    source = Provenance(Origin.PRIOR, f"declared prior for {cost.words}")
    point = {"comm_latency_s": cost.latency_s, "comm_bytes_per_s": cost.bytes_per_s}
    drawn = {name: point[name] * np.exp(sd * z) for name, sd, z in zip(COMM, (cost.latency_sd, cost.bytes_sd), normal, strict=True)}
    return replace(
        rates,
        point=replace(rates.point, **point),
        draws=replace(rates.draws, **drawn),
        sources={**rates.sources, **dict.fromkeys(COMM, source)},
    )
