"""What `simctl plan --emit vllm` prints is taken by the argument parser of `vllm serve`, value by value."""

import shlex
from importlib import import_module

import pytest

from sim.planning.emitters import commands
from sim.planning.servers import Server, serve_arguments
from sim.planning.servers import repository as repository_of
from sim.specs.parallel import Parallel
from sim.study.deployment import Deployment, plan_engine
from sim.study.fleet_spec import PoolSpec
from tests.planning.emits import DEPLOYMENTS, pool_of

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def cli_args():
    """The module of the server's arguments, where this version keeps it."""
    try:
        return import_module("vllm.entrypoints.common.cli_args")
    except ImportError:
        return import_module("vllm.entrypoints.launchers.cli_args")


@pytest.fixture(scope="module")
def parser():
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    if not current_platform.device_type:  # the plain wheel on a machine without GPU
        current_platform.device_type = "cuda"
    return cli_args().make_arg_parser(FlexibleArgumentParser())


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_argument_is_known_and_has_its_value(name, parser):
    pool = pool_of(name)
    repository, *arguments = serve_arguments(pool)
    parsed = parser.parse_args([*arguments, "--port", "8000"])
    cli_args().validate_parsed_serve_args(parsed)
    d, config = pool.deployment, plan_engine(pool.deployment)[0]
    assert repository == repository_of(d.model.source, d.model.name)
    assert parsed.tensor_parallel_size == d.tp
    assert (parsed.max_num_seqs, parsed.max_num_batched_tokens) == d.batch_limits()  # of a rank
    assert parsed.max_model_len == config.max_model_len
    assert parsed.gpu_memory_utilization == d.limits.memory_share
    assert parsed.block_size == config.block_size
    assert parsed.enable_prefix_caching == config.enable_prefix_caching
    assert parsed.enable_chunked_prefill == config.enable_chunked_prefill
    assert parsed.scheduling_policy == config.policy
    assert parsed.num_gpu_blocks_override == d.limits.num_gpu_blocks
    parallel, limits = d.parallel, d.limits
    assert (parsed.pipeline_parallel_size, parsed.data_parallel_size) == (parallel.pp, parallel.dp)
    assert bool(parsed.enable_expert_parallel) == parallel.expert
    assert bool(parsed.enforce_eager) == limits.enforce_eager
    assert bool(parsed.enable_lora) == (limits.lora is not None)
    if limits.lora is not None:
        assert (parsed.max_lora_rank, parsed.max_loras) == (limits.lora.rank, limits.lora.adapters)
    connects = pool.role != "serve" or "store_threshold" in limits.options
    assert parsed.kv_offloading_size == (None if connects else limits.kv_offloading_size)
    assert parsed.kv_cache_dtype == ("fp8" if d.precision.kv == "fp8" else "auto")
    if limits.prefill_schedule_interval > 1:
        assert parsed.prefill_schedule_interval == limits.prefill_schedule_interval
    assert (parsed.kv_transfer_config is not None) == connects


def test_the_commands_of_two_nodes_parse(parser):
    d = Deployment.of("Llama-3.1-8B", "H100", tp=8, parallel=Parallel(2, 1))
    text = commands([Server("vllm", "serve", 1, d, serve_arguments(PoolSpec(d)))])[0]
    lines = [shlex.split(line)[3:] for line in text.splitlines() if line.startswith("vllm serve")]
    parsed = [parser.parse_args(words) for words in lines]
    assert [(each.nnodes, each.node_rank, each.headless) for each in parsed] == [(2, 0, False), (2, 1, True)]
    assert {each.master_addr for each in parsed} == {"vllm-node-0"}
