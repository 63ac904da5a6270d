"""A number of requests does not decide a plan for a load that lasts, and the command says so."""

import pytest

from tests.cli import run

PLAN = ("plan", "--gpu", "H100", "--model", "Llama-3.1-8B", "--slo", "ttft:p99<2s", "--within", "1s", "--quick", "--num-prompts", "50")


@pytest.mark.parametrize(("load", "named"), [(("--request-rate", "2"), True), (("--request-rate", "inf"), False)])
def test_requests_that_are_not_counted_are_named(load, named):
    assert ("--num-prompts is not used" in run(*PLAN, *load).stderr) is named
