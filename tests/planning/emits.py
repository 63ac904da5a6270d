"""Deployments whose launch commands are checked."""

from sim.specs.lora import Lora
from sim.specs.parallel import Parallel
from sim.study.deployment import Deployment
from sim.study.fleet_spec import PoolSpec

DEPLOYMENTS = {
    "plain": ("H100", {}, {}),
    "two GPUs, fp8": ("H100", {"tp": 2, "dtype": "fp8", "kv_dtype": "fp8"}, {}),
    "limits": ("A10", {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "max_model_len": 8000, "gpu_memory_utilization": 0.85}, {}),
    "policy": ("H100", {"policy": "priority", "long_prefill_token_threshold": 512, "num_gpu_blocks": 3000}, {}),
    "no caching": ("H100", {"enable_prefix_caching": False, "enable_chunked_prefill": False, "max_model_len": 4096}, {}),
    "offloading": ("H100", {"kv_offloading_size": 16.0}, {}),
    "store threshold": ("H100", {"kv_offloading_size": 16.0, "options": {"store_threshold": 2}}, {}),
    "parallel": ("H100", {"model": "Qwen3-30B-A3B", "tp": 2, "parallel": Parallel(2, 2, True)}, {}),
    "adapters": ("H100", {"lora": Lora(64, 4), "enforce_eager": True}, {}),
    "held back": ("H100", {"prefill_schedule_interval": 4}, {}),
    "as stored": ("H200", {"model": "DeepSeek-V3", "tp": 8}, {}),
    "prefill": ("H100", {}, {"role": "prefill"}),
    "prefill with host RAM": ("H100", {"kv_offloading_size": 16.0}, {"role": "prefill"}),
    "decode": ("L40S", {"dtype": "fp8"}, {"role": "decode"}),
}


def pool_of(name):
    """A pool of the deployment of this name."""
    gpu, given, pool = DEPLOYMENTS[name]
    return PoolSpec(Deployment.of(**{"model": "Llama-3.1-8B", "gpu": gpu} | given), **pool)
