"""What a plan cannot work with is said in one line that names it."""

import pytest

from tests.cli import run

SMALL = ("--model", "Llama-3.1-8B", "--request-rate", "5", "--num-prompts", "60", "--random-output-len", "32", "--workers", "1", "--quick")
WRONG = {
    (): "plan on what? give --gpu NAME",
    ("--gpu", "H100,"): "not values with commas between them",
    ("--gpu", "H1000", "--slo", "ttft:p99<2s"): "unknown GPU 'H1000'",
    ("--gpu", "H100"): "an SLO needs a condition",
    ("--gpu", "H100", "--slo", "ttft:p99<2"): "not a condition: 'ttft:p99<2'",
    ("--gpu", "H100", "--slo", "ttft:p98<2s"): "not a condition: 'ttft:p98<2s'",
    ("--gpu", "H100", "--slo", "ttft:p99<2s ttft:p99<3s"): "ttft:p99<2s says that already",
    ("--gpu", "H100", "--slo", "good>=99%"): "what is a good request? give --goodput",
    ("--gpu", "H100", "--slo", "failed<101%"): "not a condition: 'failed<101%'",
    ("--gpu", "L20", "--slo", "ttft:p99<2s"): "no list price of L20 is known: give --price L20=USD",
    ("--gpu", "H100", "--slo", "ttft:p99<2s", "--price", "H100=2", "--price", "h100=3"): "--price: H100 has two prices, 2 and 3",
    ("--gpu", "H100", "--slo", "ttft:p99<2s", "--price", "H100=free"): "--price needs GPU=USD per hour, got 'H100=free'",
    ("--gpu", "H100", "--slo", "ttft:p99<2s", "--tp", "1,x"): "'x' is not a valid int",
    ("--gpu", "H100", "--slo", "ttft:p99<2s", "--max-num-seqs", ",".join(map(str, range(1, 2200)))): "more than 2000",
    ("--gpu", "H100", "--slo", "ttft:p95<2s ttft:p99<1s"): "ttft:p95<2s says nothing beside ttft:p99<1s",
    ("--gpu", "T4,V100", "--dtype", "bf16", "--slo", "ttft:p99<2s"): "T4 has no bf16",
    ("--gpu", "H100", "--slo", "ttft:p99<2s", "--day", "servegen-day", "--rate-curve", "servegen-day"): "leave out --rate-curve",
    ("--gpu", "H100", "--slo", "ttft:p99<2s", "--pools", "split"): "no two of these deployments make such pools",
    ("--gpu", "H100", "L40S"): "L40S: no such file; values of one option have commas between them",
    ("no-such.yaml",): "no such scenario file",
    ("batch_cap_on_an_a10",): "a plan needs 'command: plan'",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_a_wrong_command_is_one_line(arguments):
    result = run("plan", *arguments, *(SMALL if not arguments or arguments[0].startswith("-") else ()))
    assert result.code != 0
    assert not result.stdout
    assert WRONG[arguments] in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
