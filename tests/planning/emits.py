"""Deployments whose launch commands are checked."""

from sim.study.deployment import Deployment
from sim.study.fleet_spec import PoolSpec

DEPLOYMENTS = {
    "plain": ("H100", {}, {}),
    "two GPUs, fp8": ("H100", {"tp": 2, "dtype": "fp8", "kv_dtype": "fp8"}, {}),
    "limits": ("A10", {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "max_model_len": 8000, "gpu_memory_utilization": 0.85}, {}),
    "policy": ("H100", {"policy": "priority", "long_prefill_token_threshold": 512, "num_gpu_blocks": 3000}, {}),
    "no caching": ("H100", {"enable_prefix_caching": False, "enable_chunked_prefill": False, "max_model_len": 4096}, {}),
    "offloading": ("H100", {"kv_offloading_size": 16.0}, {}),
    "prefill": ("H100", {}, {"role": "prefill"}),
    "decode": ("L40S", {"dtype": "fp8"}, {"role": "decode"}),
}


def pool_of(name):
    """A pool of the deployment of this name."""
    gpu, given, pool = DEPLOYMENTS[name]
    return PoolSpec(Deployment.of("Llama-3.1-8B", gpu, **given), **pool)
