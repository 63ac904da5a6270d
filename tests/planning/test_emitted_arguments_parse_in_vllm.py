"""What `simctl plan --emit vllm` prints is taken by the argument parser of `vllm serve`, value by value."""

import pytest

from sim.planning.emit import serve_arguments
from sim.study.deployment import plan_engine
from tests.planning.emits import DEPLOYMENTS, pool_of

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def parser():
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_argument_is_known_and_has_its_value(name, parser):
    from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args

    pool = pool_of(name)
    repository, *arguments = serve_arguments(pool)
    parsed = parser.parse_args([*arguments, "--port", "8000"])
    validate_parsed_serve_args(parsed)
    d, config = pool.deployment, plan_engine(pool.deployment)[0]
    assert repository == "meta-llama/Llama-3.1-8B"
    assert parsed.tensor_parallel_size == d.tp
    assert parsed.max_num_seqs == config.max_num_seqs
    assert parsed.max_num_batched_tokens == config.max_num_batched_tokens
    assert parsed.max_model_len == config.max_model_len
    assert parsed.gpu_memory_utilization == d.limits.memory_share
    assert parsed.block_size == config.block_size
    assert parsed.enable_prefix_caching == config.enable_prefix_caching
    assert parsed.enable_chunked_prefill == config.enable_chunked_prefill
    assert parsed.scheduling_policy == config.policy
    assert parsed.num_gpu_blocks_override == d.limits.num_gpu_blocks
    assert (parsed.kv_transfer_config is not None) == (pool.role != "serve")
