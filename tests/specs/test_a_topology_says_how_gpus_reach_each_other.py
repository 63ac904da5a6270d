"""A topology, of the catalogue or of a file, names the slowest link between GPUs; a wrong field is named in one line."""

import pytest

from sim.errors import UsageError
from sim.specs.gpus import get_gpu
from sim.specs.topology import default_topology, load_topology, with_node
from tests.cli import run


@pytest.mark.parametrize(
    ("gpu", "gpus", "way"),
    [
        ("H100", 8, "nvlink"),
        ("H100", 16, "network"),
        ("A100-80G-PCIe", 2, "host"),  # its bridge is an extra
        ("RTX-4090", 2, "host"),
        ("L4", 1, "nvlink"),  # alone: nothing is crossed
        ("GB200", 72, "nvlink"),
        ("GB10", 2, "network"),
    ],
)
def test_a_card_has_a_way_by_default(gpu, gpus, way):
    assert default_topology(get_gpu(gpu)).way(gpus) == way


def written(tmp_path, text, gpu="A100-80G-PCIe"):
    file = tmp_path / "machine.yaml"
    file.write_text(text)
    return load_topology(file, get_gpu(gpu))


def test_a_file_says_otherwise(tmp_path):
    bridged = written(tmp_path, "nvlink_domain: 2\npcie: peer\npcie_roots: 2\nnetwork: 50.0e+9\n")
    assert [bridged.way(n) for n in (1, 2, 4, 8, 9)] == ["nvlink", "nvlink", "peer", "roots", "network"]
    assert bridged.network == 50e9


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("nvlink_domain: 3\n", "nvlink_domain"),
        ("pcie: bridge\n", "pcie"),
        ("pcie_roots: 3\n", "pcie_roots"),
        ("network_latency_s: 1.0e-5\n", "network"),
        ("network: -1\n", "network"),
        ("gpus_per_node: 0\n", "gpus_per_node"),
        ("gpu_per_node: 8\n", "gpu_per_node"),
        ("- 8\n", "top level"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, text, field):
    with pytest.raises(UsageError, match=rf"machine\.yaml: .*{field}") as failure:
        written(tmp_path, text)
    assert "\n" not in str(failure.value)


def test_links_that_a_card_lacks_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"nvlink_domain.*RTX-4090 has no direct links"):
        written(tmp_path, "nvlink_domain: 2\n", "RTX-4090")


def test_smaller_nodes_end_their_links():
    h100, gb200 = default_topology(get_gpu("H100")), default_topology(get_gpu("GB200"))
    assert with_node(h100, 4).way(8) == "network"
    assert with_node(gb200, 8).way(72) == "nvlink"


def test_a_file_with_fewer_links_than_gpus_is_refused(tmp_path):
    """Where the catalogue's guess stands instead of a file, the answer says that nobody named the network."""
    path = tmp_path / "nodes.yaml"
    path.write_text("gpus_per_node: 2\npcie: peer\n")
    asked = ("simulate", "--gpu", "L40S", "--model", "Qwen3-8B", "--tp", "4", "--num-prompts", "2", "--draws", "0")
    done = run(*asked, "--topology", str(path))
    assert done.code == 2
    assert done.stderr.endswith("nodes.yaml: field 'network' is missing: 4 GPUs take 2 nodes\n")
    path.write_text("gpus_per_node: 2\nnetwork: 25.0e+9\n")
    assert run(*asked, "--topology", str(path)).code == 0
