"""What `plan --emit` writes for SGLang is taken by SGLang's own argument parser, value by value."""

import argparse

import pytest

from sim.planning.servers import serve_arguments
from sim.study.deployment import Deployment
from sim.study.fleet_spec import PoolSpec
from tests.engine.sglang_oracle import engine

pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {"tp_size": 1, "mem_fraction_static": 0.82, "schedule_policy": "fcfs", "disable_radix_cache": False}),
        ({"tp": 2, "kv_dtype": "fp8", "dtype": "fp8"}, {"tp_size": 2, "kv_cache_dtype": "fp8_e4m3", "quantization": "fp8"}),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 2048}, {"max_running_requests": 64, "chunked_prefill_size": 2048}),
        ({"enable_prefix_caching": False, "enforce_eager": True}, {"disable_radix_cache": True, "disable_cuda_graph": True}),
        (
            {"options": {"overlap_schedule": False, "cuda_graph_max_bs": 64}},
            {"disable_overlap_schedule": True, "cuda_graph_max_bs_decode": 64},
        ),
    ],
)
def test_every_argument_is_known_and_has_its_value(given, wanted):
    engine()
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    model, *flags = serve_arguments(PoolSpec(Deployment.of("Llama-3.1-8B", "H100", engine="sglang", **given)))
    found = vars(parser.parse_args(["--model-path", model, *flags]))
    assert {name: found[name] for name in wanted} == wanted
