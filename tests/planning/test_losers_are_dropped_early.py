"""A race runs few trials of what cannot win: dearer choices a handful, equals fewer from stage to stage, twins none."""

from sim.planning.race import search
from sim.planning.trials import Trial
from tests.planning.synthetic import MET, TTFT, choices, trials


def test_dearer_choices_are_hardly_tried():
    plan, race = search(choices([1.0, *range(2, 100)]), TTFT, trials([[1.0]] * 99, 0), 1)
    assert plan.winner.choice == 0
    assert race.done == 100


def test_of_equals_half_go_on():
    plan, race = search(choices([1.0] * 64), TTFT, trials([[1.0]] * 64, 0), 1)
    assert plan.winner is not None
    assert race.done < 64 * 20


def test_a_cheaper_one_that_misses_goes_after_four_trials():
    plan, _ = search(choices([1.0, 2.0]), TTFT, trials([[0.0], [1.0]], 0), 1)
    assert plan.winner.choice == 1
    assert plan.standings[0].tried[1].chance.trials == 4


def test_what_went_alike_for_a_hundred_trials_shares_the_rest():
    near = [MET if i % 16 else Trial((1.5,)) for i in range(1600)]  # 0.9375: undecided for long
    _, race = search(choices([1.0, 1.5]), TTFT, lambda choice, count, wanted: [near[i] for i in wanted], 1)
    assert race.done <= 200 + 100
