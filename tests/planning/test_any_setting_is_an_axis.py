"""`plan --vary` makes a setting of --parallel, of --engine-option or of the engine an axis of the search."""

import click
import pytest

from sim.planning.bounds import states_of
from sim.slo import parse_slo
from simctl.cli import group
from simctl.from_options.questions import plan_of
from tests.cli import run

ASKED = ("--gpu", "H100", "--model", "Llama-3.1-8B", "--request-rate", "4", "--num-prompts", "40", "--slo", "tpot:p95<20ms")


def question(*more):
    command = group.get_command(click.Context(group), "plan")
    return plan_of(command.make_context("plan", [*ASKED, *more]).params)


@pytest.mark.parametrize(
    ("pair", "of"),
    [
        ("pp=1,2", lambda d: d.parallel.pp),
        ("dp=1,2", lambda d: d.parallel.dp),
        ("gpus-per-node=4,8", lambda d: d.links.gpus_per_node),
        ("draft_tokens=0,3", lambda d: d.limits.options["draft_tokens"]),
        ("engine=vllm,sglang", lambda d: d.limits.engine),
        ("enable-prefix-caching=false,true", lambda d: d.limits.enable_prefix_caching),
    ],
)
def test_each_value_is_a_deployment(pair, of):
    found = question("--vary", pair).deployments
    assert [str(of(d)).lower() for d in found.values()] == pair.partition("=")[2].split(",")


def test_every_combination_is_one():
    found = question("--vary", "pp=1,2", "--vary", "draft-tokens=0,2", "--tp", "1,2").deployments
    assert len(found) == 8
    assert "4 x H100 (TP 2 x PP 2) draft-tokens 2" in found


def test_experts_whole_or_cut():
    found = question("--model", "Qwen3-30B-A3B", "--tp", "2", "--vary", "ep=false,true").deployments
    assert [d.parallel.expert for d in found.values()] == [False, True]


def test_what_cannot_be_built_is_left_out():
    asked = question("--vary", "pp=1,33")
    assert list(asked.deployments) == ["1 x H100"]
    assert "33 is more than the 32 layers" in next(iter(asked.skipped.values()))


def test_drafts_may_beat_a_step_of_the_model():
    """Four tokens a step at best: a limit below the time of a step rules out only what drafts nothing."""
    choices, _ = question("--vary", "draft_tokens=0,3").choices()
    plain, drafts = states_of(choices, parse_slo(["tpot:p95<5ms"], {}), 64)
    assert "a token takes" in plain.why
    assert not drafts.why


@pytest.mark.parametrize(
    ("pair", "why"),
    [
        ("spot=1,2", "--vary: 'spot' is not searched; there are draft_tokens, "),
        ("tp=1,2", "--vary: --tp itself takes several values"),
        ("pp=1,", "--vary needs NAME=VALUE,VALUE, got 'pp=1,'"),
        ("pp=one", "--vary pp: 'one' is not a valid integer"),
    ],
)
def test_what_there_is_not_is_refused(pair, why):
    result = run("plan", *ASKED, "--vary", pair)
    assert result.code == 2
    assert result.stderr.startswith(f"simctl: {why}")
    assert len(result.stderr.strip().splitlines()) == 1
