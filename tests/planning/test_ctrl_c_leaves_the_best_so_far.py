"""Ctrl-C ends a race with what is known then."""

import pytest

from sim.planning.race import search
from sim.planning.words import conclusion
from tests.planning.synthetic import MET, TTFT, choices


@pytest.mark.parametrize("after", [30, 50, 90])
def test_the_answer_is_partial_and_says_so(after):
    done = 0

    def run(choice, count, wanted):
        nonlocal done
        done += len(wanted)
        if done > after:
            raise KeyboardInterrupt
        return [MET for _ in wanted]

    plan, _ = search(choices([3.0, 2.0]), TTFT, run, 4)
    assert not plan.finished
    assert plan.best.choice == 1
    assert "stopped before the answer was certain. Buy 1, 2.00 USD/hour: it does with a chance of 1.00" in conclusion(plan)


def test_before_any_trial_there_is_no_best():
    def run(choice, count, wanted):
        raise KeyboardInterrupt

    plan, _ = search(choices([1.0]), TTFT, run, 4)
    assert plan.best is None
    assert conclusion(plan) == "=> stopped before the answer was certain."
