"""What nobody named of a deployment and what would move its answer, with what it would be the other way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sim.cost.batch import decode_batch
from sim.cost.rates import RateDraws
from sim.cost.step_time import step_time_s
from sim.engine.version_defaults import unmeasured_sds
from sim.rates.links import link_cost, over_links, slowest
from sim.rates.load import unmeasured_version
from sim.specs.topology import Topology, Way
from sim.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from sim.engine.overlap import HostWork
    from sim.study.deployment import Deployment

OLDER, SAME_KV = "0.11", 0.03  # a version as much in use, and the share of KV from which it is told
SEQUENCES, CONTEXT = 16.0, 1024.0  # of the decode step that is told both ways


def assumed(d: Deployment, rates: RateDraws) -> list[str]:
    """Sentences on links between GPUs that nobody named, and on an engine version that nobody measured."""
    found = []
    way = slowest(d.parallel, d.tp, d.gpu, d.links)
    if not d.links.source and way == "host":
        found.append(_both_ways(d, rates, "the GPUs have no peer access", "over PCIe with it", replace(d.links, peer_access=True)))
    if way == "network" and d.links.network is None:
        whole = replace(d.links, gpus_per_node=d.gpus, nvlink_domain=d.gpus if d.links.nvlink_domain > 1 else 1)
        nodes = f"{d.gpus} GPUs are taken to be {d.links.nodes(d.gpus)} nodes over a network that nobody named"
        found.append(_both_ways(d, rates, nodes, "within one node", whole))
    if unmeasured_version(d):
        version, (step_sd, _) = d.limits.engine_version, unmeasured_sds(d.limits.engine_version)
        found.append(f"vllm {version} was measured nowhere: steps of the versions measured, wider (log sd {step_sd:g})")
    return found


def with_older(d: Deployment, rates: RateDraws, host: HostWork) -> str:
    """A decode step and KV of OLDER, which decides each iteration after the one before, in words, beside the deployment's own."""
    other = replace(d, limits=replace(d.limits, engine_version=OLDER, gpu_memory_utilization=d.limits.memory_share))
    here = _step_s(d, rates)
    there = here + host.iteration_s + SEQUENCES * host.sequence_s
    kept, left = (max(each.memory().free, 0.0) for each in (d, other))
    kv = f", KV {format_bytes(left)} for {format_bytes(kept)}" if abs(left - kept) > SAME_KV * kept else ""
    return f"{OLDER} takes {format_seconds(there)} for {format_seconds(here)} a decode step of {SEQUENCES:g}{kv}"


def _both_ways(d: Deployment, rates: RateDraws, taken: str, otherwise: str, links: Topology) -> str:
    """A decode step over the links taken, and over others."""
    other = replace(d, topology=replace(links, source="assumed"))
    here, there = _step_s(d, rates), _step_s(other, _over(other, rates))
    where = f"a decode step of {SEQUENCES:g} sequences at {CONTEXT:g} tokens takes {format_seconds(here)}"
    return f"taken: {taken}; {where}, {otherwise} {format_seconds(there)} ({there / here:.2g}x). --topology FILE says which"


def _over(d: Deployment, rates: RateDraws) -> RateDraws:
    """The rates with traffic over the links of another topology, where these are not the GPU's own."""
    way: Way = slowest(d.parallel, d.tp, d.gpu, d.links)
    if way != "nvlink":
        return over_links(rates, way, d.gpu, d.links)
    cost = link_cost(way, d.gpu, d.links)
    return replace(rates, point=replace(rates.point, comm_latency_s=cost.latency_s, comm_bytes_per_s=cost.bytes_per_s))


def _step_s(d: Deployment, rates: RateDraws) -> float:
    return float(step_time_s(d.work(decode_batch(d.model, SEQUENCES, CONTEXT, d.limits.attention)), rates.point))
