"""A plan says why nothing cheaper does, why no other GPU, and what a fifth more load does, of the same trials."""

from types import SimpleNamespace

from sim.planning.choices import Choice, Part
from sim.planning.race import search
from sim.planning.trials import Trial
from sim.planning.words import reasons
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
        "Why not cheaper: L4 (1.00 USD/hour) misses ttft:p99<1s in 100 % of 4 trials, and its queue grows without end in 100 %.",
        "Why not another GPU: H100 costs 4.00 USD/hour or more.",
        "With 20 % more requests 1 of 4 trials meet it, of which 4 do now.",
    ]
