"""What --emit writes starts the engine that was simulated: its parallelism, its adapters, and a length that its KV holds."""

import pytest

from sim.planning.emit import serve_arguments
from sim.specs.lora import Lora
from sim.specs.parallel import Parallel
from sim.study.deployment import Deployment, plan_engine
from sim.study.fleet_spec import PoolSpec


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
    assert int(values["--max-model-len"]) == config.kv_capacity_tokens < 34_000
