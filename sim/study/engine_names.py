"""Settings by the names that engines give them on their command lines, as arguments of `Deployment.of`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sim.errors import UsageError
from sim.specs.parallel import NO_PARALLEL

SAME = {
    "tensor_parallel_size": "tp",
    "tp_size": "tp",
    "kv_cache_dtype": "kv_dtype",
    "num_gpu_blocks_override": "num_gpu_blocks",
    "scheduling_policy": "policy",
    "mem_fraction_static": "gpu_memory_utilization",
    "chunked_prefill_size": "max_num_batched_tokens",
    "max_running_requests": "max_num_seqs",
    "context_length": "max_model_len",
    "page_size": "block_size",
    "disable_cuda_graph": "enforce_eager",
}
PARALLEL = {
    "pipeline_parallel_size": "pp",
    "pp_size": "pp",
    "data_parallel_size": "dp",
    "dp_size": "dp",
    "enable_expert_parallel": "expert",
}
OFF = {"disable_radix_cache": "enable_prefix_caching"}
ENGINE_NAMES = {*SAME, *PARALLEL, *OFF}


def own_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments under this project's names. UsageError for one that is given under two."""
    found: dict[str, Any] = {}
    parallel = given.get("parallel", NO_PARALLEL)
    for name, value in given.items():
        if name in PARALLEL:
            parallel = replace(parallel, **{PARALLEL[name]: value})
            continue
        own = SAME.get(name) or OFF.get(name) or name
        if own in found:
            raise UsageError(f"{own} is given twice: {name} is the same")
        found[own] = not value if name in OFF else value
    return found if parallel == NO_PARALLEL else found | {"parallel": parallel}
