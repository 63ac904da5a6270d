"""A question has one answer: asked by its object, its function or its command, number by number."""

import json

import pytest

from sim import Deployment, Plan, RegimeMap, Simulate, Workload, load_rates, regime_map, simulate, step_time, what_if
from sim.rates.load import on_another_machine
from sim.sweeps.figures import flatten
from tests.cli import run

GOAL = ("mean_tpot_ms", 10.5)  # on a border: some draws meet it
ASKED = ("--model", "Llama-3.1-8B", "--gpu", "H100")
LENGTHS = ("--random-input-len", "512", "--random-output-len", "64")
CARDS = {
    "vllm": {},
    "sglang": {"engine": "sglang"},
    "eager": {"enforce_eager": True},
    "in turn": {"options": {"async_scheduling": False}},
    "drafts": {"options": {"draft_tokens": 3}},
}


def deployment(**more):
    return Deployment.of("Llama-3.1-8B", "H100", **more)


def workload(rate=20.0, count=60):
    return Workload.drawn(count, request_rate=rate, input_len=512, output_len=64)


def as_printed(answer):
    return json.loads(json.dumps(answer))


def numbers(answer, leave=()):
    found = flatten(as_printed(answer)).items()
    return {name: value for name, value in found if isinstance(value, int | float) and not name.startswith(leave)}


@pytest.mark.parametrize("card", CARDS)
def test_a_simulation_by_function_and_by_object(card):
    d = deployment(**CARDS[card])
    asked, called = Simulate(d, workload(), draws=3).answer(), simulate(d, workload(), draws=3)
    assert called.draws == asked.draws
    assert called.to_dict() == asked.to_dict()


def test_a_simulation_at_rates_that_are_given():
    d = deployment()
    given, called = (simulate(d, workload(), rates, draws=3) for rates in (on_another_machine(load_rates(d, draws=1600)), None))
    assert given.draws == called.draws
    assert given.goal(*GOAL) == called.goal(*GOAL) == Simulate(d, workload(), draws=3, goal=GOAL).answer().reached


def test_a_simulation_by_function_and_by_command():
    printed = run(
        "simulate",
        *ASKED,
        *LENGTHS,
        "--num-prompts",
        "60",
        "--request-rate",
        "20",
        "--draws",
        "3",
        "--json",
        "--goal",
        "mean_tpot_ms<=10.5",
    )
    asked = Simulate(deployment(), workload(), draws=3, goal=GOAL).answer().to_dict()
    assert numbers(asked).items() <= numbers(json.loads(printed.stdout)).items()


@pytest.mark.parametrize("card", CARDS)
def test_a_step_of_a_what_if_of_an_iteration_and_of_a_simulation(card):
    d = deployment(**CARDS[card])
    dense = next(each for each in what_if(d, 4096).options if each.policy.label == "dense (KV in HBM)")
    simulated = Simulate(d, workload()).study().rates
    assert dense.step_s.point == step_time(d, [4096]).seconds == step_time(d, [4096], rates=simulated).seconds


def test_a_what_if_by_function_and_by_command():
    printed = run("what-if", *ASKED, "--ctx", "64k", "--batch", "1,8", "--json")
    assert numbers(what_if(deployment(), 65536, batches=(1, 8)).to_dict()) == numbers(json.loads(printed.stdout))


def test_a_map_by_function_and_by_command():
    asked = RegimeMap(deployment(), contexts=(8192, 16384))
    rates = asked.answer().rates
    called = regime_map(asked.deployment, asked.policy, asked.contexts, asked.batches, rates)
    printed = json.loads(run("what-if", *ASKED, "--ctx", "16k", "--map", "hbm", "--json").stdout)
    assert called.speedup.tolist() == asked.answer().speedup.tolist() == printed["speedup"]
    assert called.low.tolist() == asked.answer().low.tolist() == printed["speedup_p05"]


def test_rates_in_a_plan_are_those_of_each_deployment_alone():
    choices, _ = Plan([deployment(**more) for more in CARDS.values()], workload(), ("ttft:p99<2s",)).choices()
    alone = [Simulate(deployment(**more), workload()).study() for more in CARDS.values()]
    assert [(each.study.rates.point, each.study.host) for each in choices] == [(each.rates.point, each.host) for each in alone]
    assert [each.study.rates.draws.beta.tolist() for each in choices] == [each.rates.draws.beta.tolist() for each in alone]
