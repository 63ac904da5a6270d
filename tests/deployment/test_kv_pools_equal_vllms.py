"""KV groups, pool and longest request of hybrid models are those that vLLM's own planning computes from the same memory."""

import pytest

from sim.deployment.kv_layout import layers_of, vllm_layout
from sim.deployment.pool import KvPool
from sim.specs.models import get_model
from sim.specs.precision import Precision
from tests.engine.vllm_oracle import _model_config

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]
BF16, BLOCK = Precision(), 16
MODELS = ["Gemma-3-12B", "Gemma-3-27B", "gpt-oss-20b", "Llama-4-Scout"]


def specs_of(model):
    """vLLM's description of each layer's cache, from our layer groups."""
    import torch
    from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, SlidingWindowSpec

    found = {}
    for number, group in enumerate(model.groups):
        mixer = group.mixer
        shape = {"block_size": BLOCK, "num_kv_heads": mixer.kv_heads, "head_size": mixer.head_dim, "dtype": torch.bfloat16}
        for layer in range(group.count):
            if not mixer.window:
                spec = FullAttentionSpec(**shape)
            elif model.name.startswith("Llama-4"):
                spec = ChunkedLocalAttentionSpec(**shape, attention_chunk_size=mixer.window)
            else:
                spec = SlidingWindowSpec(**shape, sliding_window=mixer.window)
            found[f"{number}.{layer}"] = spec
    return found


def planned(model, free, budget):
    """(vLLM's groups, blocks of the pool, the longest request of `--max-model-len auto`), two iterations in flight."""
    from vllm.config import CacheConfig, DeviceConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.kv_cache_planning import get_kv_cache_configs, get_kv_cache_groups

    longest = model.max_context
    config = VllmConfig(
        model_config=_model_config(),
        scheduler_config=SchedulerConfig(
            max_num_seqs=256, max_num_batched_tokens=budget, max_model_len=longest, is_encoder_decoder=False, async_scheduling=True
        ),
        cache_config=CacheConfig(block_size=BLOCK, gpu_memory_utilization=0.9, cache_dtype="auto"),
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.kv_cache_layout = "LBNHC"  # what a worker on a GPU reports
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    config.model_config.max_model_len, config.model_config.original_max_model_len = longest, -1
    specs = specs_of(model)
    groups = get_kv_cache_groups(config, dict(specs))
    pool = get_kv_cache_configs(config, [specs], [int(free)], groups)[0]
    return pool.kv_cache_groups, pool.num_blocks, config.model_config.max_model_len


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("free", "budget"), [(5e9, 2048), (4e10, 8192)])
def test_groups_pool_and_longest_request(name, free, budget):
    model = get_model(name)
    groups, blocks, longest = planned(model, free, budget)
    pool = KvPool(vllm_layout(model, BF16), free, 2 * budget)
    layers = sum(each.number for each in layers_of(model, BF16))
    assert len(pool.layout.groups) == len(groups)
    assert sum(len(group.layer_names) for group in groups) == layers
    assert pool.blocks == blocks
    assert pool.longest(model.max_context) == longest
