"""A plan says why nothing cheaper does, why no other GPU, and what a fifth more load does, of the same trials."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sim.planning.choices import Choice, Part
from sim.planning.question import _named
from sim.planning.race import search
from sim.planning.trials import Trial
from sim.planning.words import conclusion, left_by_a_node, reasons, without_a_node
from sim.study.deployment import Deployment
from tests.planning.synthetic import MET, TTFT


def offered(name, price):
    study = SimpleNamespace(deployment=SimpleNamespace(gpu=SimpleNamespace(name=name)), workload=None)
    return Choice(name, study, (Part(1, price, 1),))


def test_a_sentence_each():
    late = Trial((1.5,), grows=True)
    found = [offered("L4", 1.0), offered("H100", 4.0)]
    plan, _ = search(found, TTFT, lambda choice, count, wanted: [late if choice == 0 and count == 1 else MET for _ in wanted], 4)
    said = reasons(plan, [MET] * 4, [MET, late, late, late])
    assert said == [
        "Why not cheaper: L4 (1.00 USD/hour) misses ttft:p99<1s in 100 % of 2 trials, and its queue grows without end in 100 %.",
        "Why not another GPU: H100 costs 4.00 USD/hour or more.",
        "With 20 % more requests 1 of 4 trials meet it, of which 4 do now.",
    ]


@pytest.mark.parametrize(
    ("per_node", "count", "standing_by", "left"), [(8, 12, 0, 4), (8, 8, 0, 0), (8, 3, 3, 0), (8, 9, 8, 9), (0, 5, 0, 4)]
)
def test_what_the_loss_of_a_node_leaves(per_node, count, standing_by, left):
    """Replicas of a node or, of those that span several, one; what stands by takes their place."""
    links = SimpleNamespace(replicas_per_node=lambda gpus: per_node)
    study = SimpleNamespace(fleet=None, deployment=SimpleNamespace(links=links, gpus=1))
    choice = Choice("a", study, (Part(1, 1.0, 1, lost=standing_by),))
    assert left_by_a_node(choice, count) == left
    said = without_a_node(count, left, [MET, Trial((1.5,))])
    assert said.startswith("With one node lost, ")
    assert ("nothing is left" in said) == (left == 0)
    assert ("1 of 2 trials meet it" in said) == (left > 0)


def test_none_that_does_says_how_often_the_queue_grows():
    late, growing = Trial((1.5,)), Trial((1.2,), grows=True)
    plan, _ = search([offered("L4", 1.0)], TTFT, lambda choice, count, wanted: [growing if i % 2 == 0 else late for i in wanted], 1)
    said = conclusion(plan)
    assert "ttft:p99<1s is missed in 100 % of the trials; the queue grows without end in 50 %" in said
    assert "in the mean 135 % of its limit are used" in said


@pytest.mark.parametrize(("seconds", "warned"), [(199.0, True), (201.0, False)])
def test_a_load_shorter_than_ten_answers_is_said_to_be_short(seconds, warned):
    """An answer of 1,000 tokens at the first trial's 50 a second takes 20 s."""
    trace = SimpleNamespace(arrival_s=np.array([1.0, 1.0 + seconds]), output_tokens=np.array([500, 1500]))
    choice = offered("L4", 1.0)
    choice.study.workload, choice.study.fleet = SimpleNamespace(trace=trace), ()
    plan, _ = search([choice], TTFT, lambda _, count, wanted: [Trial((0.5,), 50.0 if i == 0 else 500.0) for i in wanted], 1)
    assert ("an answer 20.0 s: a longer one" in conclusion(plan)) == warned


def test_deployments_of_one_name_are_told_apart():
    d = Deployment.of("Llama-3.1-8B", "L4", dtype="fp8")
    assert list(_named([d, replace(d, router="random"), d])) == [
        "1 x L4 Llama-3.1-8B fp8", "1 x L4 Llama-3.1-8B fp8, 2", "1 x L4 Llama-3.1-8B fp8, 3"
    ]  # fmt: skip
