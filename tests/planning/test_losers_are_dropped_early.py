"""A race runs few trials of what cannot win: dearer choices a handful, equals fewer from stage to stage, twins none."""

from sim.planning.race import SAME, TWO_UPTO, search
from sim.planning.trials import Trial
from sim.results.chance import CERTAINTY, ENOUGH
from tests.planning.synthetic import MET, TTFT, choices, trials

ENOUGH_HELD = 100  # trials that all hold decide


def test_dearer_choices_are_hardly_tried():
    plan, race = search(choices([1.0, *range(2, 100)]), TTFT, trials([[1.0]] * 99, 0), 1)
    assert plan.winner.choice == 0
    assert race.done == 100


def test_of_equals_half_go_on():
    chances = [[1.0 + 1e-9 * i] for i in range(64)]  # no two trials alike
    plan, race = search(choices([1.0] * 64), TTFT, trials(chances, 0), 1)
    assert plan.winner is not None
    ran = [len(candidate.trials) for candidate in plan.candidates()]
    assert [sum(each >= stage for each in ran) for stage in (4, 20, 40, 60, 80, 100)] == [64, 31, 15, 7, 3, 1]
    assert race.done == sum(ran)


def test_of_equals_the_one_with_more_to_spare_wins():
    used = (0.9, 0.4, 0.7)
    plan, _ = search(choices([1.0] * 3), TTFT, lambda choice, count, wanted: [Trial((used[choice],)) for _ in wanted], 1)
    assert plan.winner.choice == 1
    assert abs(plan.winner.margin - 0.6) < 1e-12


def test_what_lies_at_the_edge_runs_to_the_last_stage():
    plan, race = search(choices([1.0]), TTFT, trials([[CERTAINTY]], 5), 1)
    assert plan.winner is None
    assert race.done == ENOUGH
    assert plan.nearest() is plan.undecided()[0]


def test_the_nearest_is_the_likeliest():
    plan, _ = search(choices([1.0, 2.0, 3.0]), TTFT, trials([[0.1], [0.7], [0.4]], 0), 1)
    assert plan.winner is None
    assert plan.nearest().choice == 1


def test_a_cheaper_one_that_misses_goes_after_two_trials():
    plan, _ = search(choices([1.0, 2.0]), TTFT, trials([[0.0], [1.0]], 0), 1)
    assert plan.winner.choice == 1
    assert plan.states[0].candidates[1].chance.trials == 2


def test_a_cap_that_is_never_reached_is_no_choice_of_its_own():
    """Twelve caps; the lowest two are reached, the lowest of all by as little that four trials show it."""

    def used(choice, trial):
        return 0.7 + 0.01 * (trial % 3) + (0.1 if choice == 0 else 0.05 * (trial == 2) if choice == 1 else 0.0)

    plan, race = search(choices([1.0] * 12), TTFT, lambda choice, count, wanted: [Trial((used(choice, i),)) for i in wanted], 1)
    assert [state.same_as for state in plan.states] == [None, None, None, *[2] * 9]
    assert plan.winner.choice == 2
    assert race.done == 12 * SAME + (ENOUGH_HELD - SAME) + (TWO_UPTO - SAME)


def test_where_a_lower_count_may_do_the_same_is_no_reason_to_drop_one():
    """At two units the choices are the same; at one the second does in most trials."""

    def run(choice, count, wanted):
        return [MET if count == 2 or (choice and i % 8) else Trial((2.0,)) for i in wanted]

    plan, _ = search(choices([1.0, 1.0]), TTFT, run, 2)
    assert plan.states[1].same_as is None or plan.states[1].fails >= 1
    assert plan.winner.replicas == 2


def test_what_went_alike_for_a_hundred_trials_shares_the_rest():
    near = [MET if i % 16 else Trial((1.5,)) for i in range(1600)]  # 0.9375: undecided for long
    _, race = search(choices([1.0, 1.5]), TTFT, lambda choice, count, wanted: [near[i] for i in wanted], 1)
    assert race.done <= 200 + 100
