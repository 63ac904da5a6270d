"""`validate` takes from a measured server's flags what `--from-deployment` takes from its command."""

import pytest

from calibrate.served.flags import limits_of_flags, parallel_of_flags, tp_of_flags, unread
from simctl.commands.simulate_command import command
from simctl.from_options.deployments import deployment_of

VLLM = (
    "--max-num-seqs 64 --max-num-batched-tokens 4096 --max-model-len 8192 --gpu-memory-utilization 0.8 --block-size 32",
    "--long-prefill-token-threshold 512 --scheduling-policy priority --kv-offloading-size 8 --prefill-schedule-interval 3",
    "--no-enable-chunked-prefill --max-num-batched-tokens 16384 --max-model-len 8k --no-enable-prefix-caching --enforce-eager",
    "--num-gpu-blocks-override 5000 --enable-lora --max-lora-rank 32 --max-loras 4 --no-async-scheduling -tp 2",
    '--tensor_parallel_size=2 --pipeline-parallel-size 2 --speculative-config \'{"method": "eagle3", "num_speculative_tokens": 3}\'',
)
SGLANG = (
    "--max-running-requests 64 --chunked-prefill-size 4096 --context-length 8192 --mem-fraction-static 0.8 --page-size 32 --tp-size 2",
    "--disable-radix-cache --disable-cuda-graph --page-size 1",
)


@pytest.mark.parametrize(("engine", "flags"), [("vllm", each) for each in VLLM] + [("sglang", each) for each in SGLANG])
def test_limits_and_parallelism(engine, flags, tmp_path):
    path = tmp_path / "serve.sh"
    started = "vllm serve" if engine == "vllm" else "python -m sglang.launch_server --model-path"
    path.write_text(f"{started} meta-llama/Llama-3.1-8B {flags}\n")
    d = deployment_of(command.make_context("simulate", ["--from-deployment", str(path), "--gpu", "H100"]).params)
    found = limits_of_flags(flags, engine=engine)
    for name in found.__dataclass_fields__:
        if name not in ("options", "draft", "engine_version", "enable_prefix_caching"):
            assert getattr(found, name) == getattr(d.limits, name), name
    assert found.enable_prefix_caching == (d.limits.enable_prefix_caching is not False)
    assert d.limits.options.items() <= found.options.items()
    assert (tp_of_flags(flags, engine), parallel_of_flags(flags, engine)) == (d.tp, d.parallel)
    assert unread(flags, engine) == ()
