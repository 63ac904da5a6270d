"""`validate` takes from a measured server's flags what `--from-deployment` takes from its command."""

import click
import pytest

from calibrate.served.flags import ELSEWHERE, read_flags
from sim.engine.server_flags import FLAGS, SWITCHES
from sim.errors import UsageError
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
    said = read_flags(flags, engine=engine)
    found = said.limits
    for name in found.__dataclass_fields__:
        if name not in ("options", "draft", "engine_version", "enable_prefix_caching"):
            assert getattr(found, name) == getattr(d.limits, name), name
    assert found.enable_prefix_caching == (d.limits.enable_prefix_caching is not False)
    assert d.limits.options.items() <= found.options.items()
    assert (said.tp, said.parallel, said.unread) == (d.tp, d.parallel, ())


VALUES = {
    "dtype": "float16",
    "q": "fp8",
    "quantization": "fp8",
    "kv-cache-dtype": "fp8",
    "model": "Qwen/Qwen3-8B",
    "model_id": "Qwen/Qwen3-8B",
    "model-path": "Qwen/Qwen3-8B",
    "m": "Qwen3-8B-Q8_0.gguf",
    "hf": "Qwen/Qwen3-8B-GGUF:Q8_0",
    "hf-repo": "Qwen/Qwen3-8B-GGUF:Q8_0",
    "gpu-memory-utilization": "0.5",
    "mem-fraction-static": "0.5",
    "scheduling-policy": "priority",
    "engine-version": "0.23",
    "cache-type-k": "q8_0",
    "cache-type-v": "q8_0",
    "ctk": "q8_0",
    "ctv": "q8_0",
    "n-gpu-layers": "7",
    "ngl": "7",
}
STARTED = {
    "vllm": "vllm serve meta-llama/Llama-3.1-8B",
    "sglang": "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B",
    "llamacpp": "llama-server -m Llama-3.1-8B-F16.gguf -c 8192 -np 2",
}
RESTATED = {"enable-chunked-prefill", "enable-prefix-caching"}  # what holds anyway
OF_THE_FILE = {*ELSEWHERE, "q", "model_id"}  # what was measured says its model itself
WITH_ADAPTERS = {"max-loras", "max-lora-rank"}  # a server without --enable-lora has no use for them
EACH = [(engine, flag) for engine in FLAGS for flag in (*FLAGS[engine], *SWITCHES) if flag not in RESTATED]
MEASURED = [(engine, flag) for engine, flag in EACH if engine != "llamacpp" and flag not in OF_THE_FILE | WITH_ADAPTERS]


def valued(engine, flag):
    """The flag as a command line has it, with a value where it takes one."""
    value = "" if flag in SWITCHES and flag not in FLAGS[engine] else VALUES.get(flag, "4")
    return f"{'-' if len(flag) < 3 else '--'}{flag} {value}"


def asked(tmp_path, capsys, engine, words):
    """(the deployment that a server's words mean, what is said beside), or the line that refuses them."""
    path = tmp_path / "serve.sh"
    path.write_text(f"{STARTED[engine]} {words}\n")
    try:
        d = deployment_of(command.make_context("simulate", ["--from-deployment", str(path), "--gpu", "H100"]).params)
    except (UsageError, click.UsageError) as refused:
        return str(refused), ""
    return d, capsys.readouterr().err.partition("not used:")[2]


@pytest.mark.parametrize(("engine", "flag"), EACH)
def test_a_flag_changes_the_deployment_or_is_named(engine, flag, tmp_path, capsys):
    before, after = (asked(tmp_path, capsys, engine, words) for words in ("", valued(engine, flag)))
    assert after[0] != before[0] or flag in after[1], after


@pytest.mark.parametrize(("engine", "flag"), MEASURED)
def test_a_flag_of_a_measured_server_changes_what_it_means_or_is_named(engine, flag):
    assert read_flags(valued(engine, flag), engine=engine) != read_flags("", engine=engine)
