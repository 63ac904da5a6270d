"""Choices of small plans, by the API."""

from sim import Plan, Workload, deployments, get_gpu
from sim.specs.topology import default_topology, with_node

SLO = "ttft:p99<1s tpot:p95<60ms"


def choices(workload: Workload, gpu: str, pools: str = "one", reserve: str = "none", gpus_per_node: int | None = None, **values):
    """Choices of Llama-3.1-8B on these GPUs; `values` are those of sim.deployments, each one or several."""
    several = {key: value if isinstance(value, tuple) else (value,) for key, value in values.items()}
    nodes = {} if gpus_per_node is None else {gpu: with_node(default_topology(get_gpu(gpu)), gpus_per_node)}
    found = deployments("Llama-3.1-8B", gpu.split(","), topology=nodes, **several)
    return Plan(found, workload, (SLO,), pools=pools.split(","), reserve=reserve).choices()[0]
