"""A length that the KV pool cannot hold is refused, as vLLM refuses to start, and one that nobody gave is shortened, which is said."""

import re

import pytest

from sim.errors import SimctlError
from sim.study.deployment import Deployment, plan_engine
from simctl.commands.simulate_command import command
from simctl.from_options.deployments import deployment_of
from tests.cli import run

ASKED = ("simulate", "--model", "Llama-3.1-8B", "--num-prompts", "5", "--request-rate", "1", "--draws", "0")


@pytest.mark.parametrize("gpu", ["L4", "A10"])
def test_the_longest_that_fits_is_named_and_then_starts(gpu):
    shortened = run(*ASKED, "--gpu", gpu)
    assert shortened.code == 0
    fits = int(re.search(r"start it with\s+--max-model-len (\d+)", shortened.stdout)[1])
    assert fits == plan_engine(Deployment.of("Llama-3.1-8B", gpu))[0].max_model_len
    assert run(*ASKED, "--gpu", gpu, "--max-model-len", "auto").stdout == shortened.stdout
    assert "would not start" not in " ".join(run(*ASKED, "--gpu", gpu, "--max-model-len", str(fits)).stdout.split())
    for asked in (fits + 1, 131_072):
        refused = run(*ASKED, "--gpu", gpu, "--max-model-len", str(asked))
        assert (refused.code, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
        assert f"the longest that fits is --max-model-len {fits}" in refused.stderr


def test_commands_and_python_take_the_same_length():
    """One rule for all who ask: nobody gave a length, so each takes what fits."""
    options = command.make_context("simulate", ["--gpu", "L4", "--model", "Llama-3.1-8B"]).params
    asked = plan_engine(deployment_of(options))[0].max_model_len
    assert asked == plan_engine(Deployment.of("Llama-3.1-8B", "L4"))[0].max_model_len < 40_000


def test_an_a10_holds_what_a_start_printed():
    """A start at a share of 0.9 refused 131,072 tokens and named some 33,450 as the longest."""
    d = Deployment.of("Llama-3.1-8B", "A10", gpu_memory_utilization=0.9)
    assert plan_engine(d)[0].max_model_len == pytest.approx(33_450, rel=0.03)


def test_auto_is_the_models_length_where_that_fits():
    d = Deployment.of("Llama-3.1-8B", "H100", max_model_len="auto")
    assert plan_engine(d)[0].max_model_len == 131_072


def test_given_blocks_are_taken_as_they_are():
    assert plan_engine(Deployment.of("Llama-3.1-8B", "L4", max_model_len=None, num_gpu_blocks=100))[0].max_model_len == 131_072


def test_a_rank_holds_its_requests_alone():
    """Two ranks have twice the KV, and no longer requests."""
    from sim.specs.parallel import Parallel

    one, two = (Deployment.of("Llama-3.1-8B", "L4", parallel=Parallel(1, dp)) for dp in (1, 2))
    (a, _), (b, _) = plan_engine(one), plan_engine(two)
    assert b.kv_capacity_tokens == 2 * a.kv_capacity_tokens
    assert b.max_model_len == a.max_model_len
    with pytest.raises(SimctlError, match="does not hold one request"):
        plan_engine(Deployment.of("Llama-3.1-8B", "L4", parallel=Parallel(1, 2), max_model_len=None))
