"""Two consumer cards leave less for KV than their weights do: NCCL, contexts, a desktop. The interval holds what public starts logged."""

import pytest

from sim.specs.topology import Topology
from sim.study.deployment import Deployment, kv_block_interval, plan_engine


def pool(model, **more):
    return Deployment.of(model, "RTX-4090", tp=2, dtype="fp8", gpu_memory_utilization=0.9, max_model_len=16384, **more)


@pytest.mark.parametrize(("model", "logged"), [("Qwen2.5-32B", 18_144), ("Qwen3-30B-A3B", 87_584)])
def test_the_logged_pool_is_within(model, logged):
    low, high = (16 * blocks for blocks in kv_block_interval(pool(model)))
    assert low < logged < high


def test_peer_access_costs_nothing_more():
    peers = Topology(nvlink_domain=1, peer_access=True)
    assert plan_engine(pool("Qwen2.5-32B", topology=peers))[0].num_gpu_blocks > plan_engine(pool("Qwen2.5-32B"))[0].num_gpu_blocks
