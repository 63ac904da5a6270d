"""Without --tp a plan takes the fewest GPUs that hold the model, and twice as many where one is too few."""

import click
import pytest

from simctl.cli import group
from simctl.from_options.questions import plan_of


@pytest.mark.parametrize(
    ("gpus", "model", "found"),
    [
        ("H100", "Llama-3.1-8B", ["1 x H100"]),
        ("H100", "Llama-3.1-70B", ["2 x H100", "4 x H100"]),
        ("H200,L40S", "Llama-3.1-70B", ["2 x H200", "4 x H200", "4 x L40S", "8 x L40S"]),
        ("A10", "Llama-3.1-405B", ["8 x A10"]),
    ],
)
def test_sizes(gpus, model, found):
    command = group.get_command(click.Context(group), "plan")
    argv = ["--gpu", gpus, "--model", model, "--request-rate", "1", "--slo", "ttft:p99<9s"]
    assert list(plan_of(command.make_context("plan", argv).params).deployments) == found
