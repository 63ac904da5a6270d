"""Of several combinations those that cannot be are named with the reason; the others race on."""

import json

from tests.cli import run

SMALL = ("--model", "Llama-3.1-8B", "--request-rate", "5", "--num-prompts", "60", "--random-output-len", "32", "--workers", "1", "--quick")


def test_a_gpu_that_lacks_the_dtype():
    asked = ("plan", "--gpu", "T4,H100", "--dtype", "bf16", "--kv-dtype", "bf16", *SMALL, "--slo", "ttft:p99<2s", "--price", "T4=0.1")
    answer = json.loads(run(*asked, "--json").stdout)
    assert answer["winner"]["choice"] == "1 x H100"
    assert answer["skipped"] == {"1 x T4": "T4 has no bf16: engines refuse it there; use fp16"}
    assert "out: 1 x T4: T4 has no bf16" in run(*asked).stdout
