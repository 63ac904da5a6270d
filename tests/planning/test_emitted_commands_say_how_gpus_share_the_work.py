"""What --emit writes starts the engine that was simulated: its parallelism, its adapters, and a length that its KV holds."""

import pytest

from sim.planning.servers import serve_arguments
from sim.specs.lora import Lora
from sim.specs.parallel import Parallel
from sim.study.deployment import Deployment, plan_engine
from sim.study.fleet_spec import PoolSpec
from tests.planning.emits import pool_of


def arguments(model="Qwen3-30B-A3B", gpu="H100", **given):
    found = serve_arguments(PoolSpec(Deployment.of(model, gpu, **given)))
    values = dict(zip(found, [*found[1:], ""], strict=True))
    return found, values


def test_parallelism_is_written_and_limits_are_those_of_a_rank():
    found, values = arguments(tp=2, parallel=Parallel(2, 4, True), max_num_seqs=64, max_num_batched_tokens=4096)
    sizes = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--max-num-seqs", "--max-num-batched-tokens")
    assert [values[name] for name in sizes] == ["2", "2", "4", "64", "4096"]
    assert "--enable-expert-parallel" in found


def test_nothing_is_written_that_was_not_asked_for():
    found, _ = arguments()
    assert not any("parallel" in each and each != "--tensor-parallel-size" for each in found)
    assert "--enforce-eager" not in found
    assert "--enable-lora" not in found


def test_adapters_and_eager_are_written():
    found, values = arguments("Llama-3.1-8B", enforce_eager=True, lora=Lora(64, 4))
    assert {"--enforce-eager", "--enable-lora"} <= set(found)
    assert (values["--max-lora-rank"], values["--max-loras"]) == ("64", "4")


@pytest.mark.parametrize("gpu", ["L4", "A10"])
def test_the_length_is_one_that_starts(gpu):
    """vLLM refuses 131,072 tokens there: the command must not ask for them."""
    _, values = arguments("Llama-3.1-8B", gpu)
    config, _ = plan_engine(Deployment.of("Llama-3.1-8B", gpu))
    assert int(values["--max-model-len"]) == config.kv_capacity_tokens < 40_000


WRITTEN = {
    "two GPUs, fp8": "--quantization fp8 --kv-cache-dtype fp8 --tensor-parallel-size 2",
    "limits": "--max-num-seqs 64 --max-num-batched-tokens 4096 --max-model-len 8000 --gpu-memory-utilization 0.85",
    "policy": "--scheduling-policy priority --long-prefill-token-threshold 512 --num-gpu-blocks-override 3000",
    "no caching": "--no-enable-prefix-caching --no-enable-chunked-prefill",
    "offloading": "--kv-offloading-size 16",
    "store threshold": '--kv-transfer-config {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": '
    '{"cpu_bytes_to_use": 17179869184, "store_threshold": 2}}',
    "prefill with host RAM": '--kv-transfer-config {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": '
    '{"connectors": [{"kv_connector": "NixlConnector", "kv_role": "kv_both"}, {"kv_connector": "OffloadingConnector", "kv_role": '
    '"kv_both", "kv_connector_extra_config": {"cpu_bytes_to_use": 17179869184}}]}}',
    "parallel": "--tensor-parallel-size 2 --pipeline-parallel-size 2 --data-parallel-size 2 --enable-expert-parallel",
    "adapters": "--enable-lora --max-lora-rank 64 --max-loras 4 --enforce-eager",
    "held back": "--prefill-schedule-interval 4",
    "prefill": "--kv-transfer-config",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_each_limit_is_written_once_and_by_nobody_else(name):
    mine, plain = (serve_arguments(pool_of(each)) for each in (name, "plain"))
    assert f" {WRITTEN[name]} " in f" {' '.join(mine)} " or set(WRITTEN[name].split()) <= set(mine)
    assert all(mine.count(each) == 1 for each in mine if each.startswith("--"))
    assert set(plain) != set(mine)
