"""Topology: how the GPUs of a deployment reach each other, within a node and between nodes.

From the GPU's catalogue entry, or a YAML file:

    gpus_per_node: 8
    nvlink_domain: 8          # GPUs that direct links join (NVLink, Infinity Fabric); 1: none
    pcie: host                # without direct links: `peer` (peer-to-peer access) or `host` (through host memory)
    pcie_roots: 2             # PCIe root complexes (CPU sockets) of a node; peers on different ones also cross the CPUs' link
    network: 50.0e+9          # bytes/s per GPU between nodes; left out: not known
    network_latency_s: 60.0e-6
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sim.errors import UsageError
from sim.files import text_of
from sim.specs.fields import Fields
from sim.specs.gpu import GpuSpec
from sim.specs.lookup import did_you_mean

Way = Literal["nvlink", "peer", "roots", "host", "network"]
GPUS_PER_NODE = 8
MOST_GPUS = 1024
FIELDS = ("gpus_per_node", "nvlink_domain", "pcie", "pcie_roots", "network", "network_latency_s")


@dataclass(frozen=True, slots=True)
class Topology:
    """Groups of GPUs that reach each other the same way. `network` in bytes/s per GPU, None where nobody named it."""

    gpus_per_node: int = GPUS_PER_NODE
    nvlink_domain: int = GPUS_PER_NODE
    peer_access: bool = False
    pcie_roots: int = 1
    network: float | None = None
    network_latency_s: float | None = None
    source: str = ""  # the file, empty for what a catalogue entry says

    def way(self, gpus: int) -> Way:
        """The slowest link that a group of neighbouring GPUs crosses."""
        if gpus <= self.nvlink_domain:
            return "nvlink"
        if gpus > self.gpus_per_node:
            return "network"
        if not self.peer_access:
            return "host"
        return "peer" if gpus <= self.gpus_per_node // self.pcie_roots else "roots"

    def nodes(self, gpus: int) -> int:
        """Nodes that a replica of so many GPUs takes."""
        return -(-gpus // self.gpus_per_node)

    def replicas_per_node(self, gpus: int) -> int:
        """Replicas of so many GPUs that a node holds; 0 for one larger than a node."""
        return self.gpus_per_node // gpus


def default_topology(gpu: GpuSpec) -> Topology:
    """Topology of a catalogue entry. Cards with no direct link, or with one that takes a bridge to be bought, have no peer access."""
    node = gpu.gpus_per_node
    domain = gpu.nvlink_domain or (node if gpu.gpu_link_bandwidth else 1)
    return Topology(node, domain)


def with_node(topology: Topology, gpus: int) -> Topology:
    """The topology with nodes of so many GPUs: direct links that ended with the node still do."""
    inside = topology.nvlink_domain <= topology.gpus_per_node
    ends = topology.nvlink_domain == topology.gpus_per_node or topology.nvlink_domain > gpus
    return replace(topology, gpus_per_node=gpus, nvlink_domain=gpus if inside and ends else topology.nvlink_domain)


def load_topology(file: Path, gpu: GpuSpec) -> Topology:
    """The topology of a YAML file, what it leaves out from the GPU's entry. UsageError naming the field that is wrong."""
    from sim.yaml_text import MAX_BYTES, read_yaml

    where = str(file)
    try:
        fields = Fields(read_yaml(text_of(file, MAX_BYTES), where), where)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from error
    fields.only(FIELDS, did_you_mean)
    usual = default_topology(gpu)
    node = fields.int("gpus_per_node", usual.gpus_per_node)
    if node > MOST_GPUS:
        raise fields.fail("gpus_per_node", f"must be at most {MOST_GPUS}, not {node}")
    wider = usual.nvlink_domain > usual.gpus_per_node
    domain = fields.int("nvlink_domain", usual.nvlink_domain if wider else min(usual.nvlink_domain, node))
    if domain > 1 and not gpu.gpu_link_bandwidth:
        raise fields.fail("nvlink_domain", f"must be 1, not {domain}: {gpu.name} has no direct links")
    if node % domain and domain % node:
        raise fields.fail("nvlink_domain", f"must divide gpus_per_node = {node} or be a multiple of it, not {domain}")
    pcie = fields.text("pcie", "host")
    if pcie not in ("peer", "host"):
        raise fields.fail("pcie", f"must be peer or host, not {pcie!r}")
    roots = fields.int("pcie_roots", 1)
    if node % roots:
        raise fields.fail("pcie_roots", f"must divide gpus_per_node = {node}, not {roots}")
    network = fields.positive("network", maximum=1e13) if fields.has("network") else None
    latency = fields.positive("network_latency_s", maximum=1.0) if fields.has("network_latency_s") else None
    if latency is not None and network is None:
        raise fields.fail("network", "is missing: network_latency_s says nothing of its bandwidth")
    return Topology(node, domain, pcie == "peer", roots, network, latency, where)
