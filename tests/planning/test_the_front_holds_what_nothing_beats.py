"""Of deployments that meet the SLO the front has those that no other one beats, from the cheapest up."""

from hypothesis import given
from hypothesis import strategies as st

from sim.planning.front import Point, front_of, undominated
from sim.planning.race import Candidate, CandidateState, search
from sim.planning.trials import Trial
from tests.planning.synthetic import TTFT, choices

MERIT = st.integers(1, 5).map(float)


@given(st.lists(st.tuples(MERIT, MERIT, MERIT), min_size=1, max_size=12))
def test_nothing_on_it_is_beaten_and_nothing_off_it_is_not(merits):
    points = [Point(Candidate(i, 1), *each) for i, each in enumerate(merits)]
    front = undominated(points)
    assert front == sorted(front, key=lambda point: point.usd_per_hour)
    for point in points:
        better = any(
            a <= point.usd_per_hour
            and b >= point.user_tokens_per_s
            and c >= point.gpu_tokens_per_s
            and (a, b, c) != (point.usd_per_hour, point.user_tokens_per_s, point.gpu_tokens_per_s)
            for a, b, c in merits
        )
        same = [
            p
            for p in front
            if (p.usd_per_hour, p.user_tokens_per_s, p.gpu_tokens_per_s)
            == (point.usd_per_hour, point.user_tokens_per_s, point.gpu_tokens_per_s)
        ]
        assert len(same) == (not better)


def test_it_begins_with_the_winner_and_goes_on_with_what_is_faster():
    speeds = [50.0, 40.0, 90.0]
    plan, race = search(
        choices([1.0, 2.0, 3.0]), TTFT, lambda choice, count, wanted: [Trial((0.5,), speeds[choice], 100.0) for _ in wanted], 1
    )
    front = front_of(plan, race)
    assert [point.candidate.choice for point in front] == [0, 2]
    assert front[0].usd_per_mtok == 1.0 / (100.0 * 3600 / 1e6)


def test_tokens_are_per_gpu_and_a_slower_dearer_choice_is_not_even_sized():
    """Units of one GPU: two of the winner's share their tokens; of the dearer ones the second is no faster, even with nobody beside."""
    states = [CandidateState(fails=1, unloaded_s=0.02), CandidateState(unloaded_s=0.01), CandidateState(unloaded_s=0.03)]
    speeds, ran = [50.0, 90.0, 30.0], []

    def run(choice, count, wanted):
        ran.append(choice)
        return [Trial((0.5,), speeds[choice], 100.0) for _ in wanted]

    plan, race = search(choices([1.0, 3.0, 3.0]), TTFT, run, 2, None, states)
    assert plan.winner.replicas == 2
    front = front_of(plan, race)
    assert [(p.usd_per_hour, p.user_tokens_per_s, p.gpu_tokens_per_s) for p in front] == [
        (2.0, 50.0, 50.0),
        (3.0, 90.0, 100.0),
    ]
    assert 2 not in ran


def test_it_ends_at_four_times_the_winners_cost():
    speeds = [50.0, 90.0, 99.0]
    plan, race = search(
        choices([1.0, 4.0, 4.5]), TTFT, lambda choice, count, wanted: [Trial((0.5,), speeds[choice], 100.0) for _ in wanted], 1
    )
    assert [point.candidate.choice for point in front_of(plan, race)] == [0, 1]
