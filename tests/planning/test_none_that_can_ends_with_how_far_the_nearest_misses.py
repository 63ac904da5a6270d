"""Where nothing meets the SLO, the answer says how far the nearest misses and by which condition."""

from tests.cli import run

SMALL = ("--model", "Llama-3.1-8B", "--request-rate", "5", "--num-prompts", "60", "--random-output-len", "32", "--workers", "1", "--quick")


def test_none_that_can_ends_with_how_far_the_nearest_misses():
    result = run("plan", "--gpu", "A100-80G", *SMALL, "--slo", "ttft:p99<12ms tpot:p95<60ms", "--most-gpus", "2")
    assert result.code == 1
    assert "=> none meets ttft:p99<12ms" in result.stdout
    assert "ttft:p99<12ms is missed in 100 % of the" in result.stdout
    out = run("plan", "--gpu", "A100-80G,L4", *SMALL, "--slo", "tpot:p95<1ms")
    assert out.code == 1
    assert "at batch 1" in " ".join(out.stdout.split())
    assert "=> none can meet tpot:p95<1ms. Nearest: 1 x A100-80G, where a token takes" in " ".join(out.stdout.split())
    unfit = run("plan", "--gpu", "L4", "--tp", "1", "--model", "Llama-3.1-70B", *SMALL[2:], "--slo", "tpot:p95<1s")
    assert "does not fit on 1 x L4" in unfit.stdout
