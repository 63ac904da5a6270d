"""A runner takes the first trials itself and the rest to its processes, and looks for no higher a rate than decides."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster import compiled
from sim.planning import trials
from sim.planning.cpu_budget import CpuBudget, OutOfTime
from sim.planning.trials import CLOSEST, MOST_STEPS, Here, Runner, Trial
from sim.workload.workload import Workload


class UpTo(Here):
    """Trials that are met up to a factor of their own."""

    def __init__(self, factors):
        super().__init__((), ())
        self.factors, self.first_asked = factors, {}

    def one(self, choice, count, trial, factor=1.0):
        self.first_asked.setdefault(trial, factor)
        return Trial((factor / self.factors[trial],))


class Elsewhere:
    """Processes that answer at once, unless they are given no time."""

    def __init__(self, here):
        self.here, self.done = here, 0

    def submit(self, _, what, *asked):
        self.done += 1
        found = what(self.here, *asked), 0.0

        class Future:
            def result(self, timeout_s):
                assert timeout_s is None or timeout_s > 0
                return found

        return Future()


FACTOR = st.floats(math.log(1 / 1000), math.log(40)).map(math.exp)


@given(FACTOR)
def test_the_factor_is_the_highest_that_is_met(truth):
    found = UpTo([truth]).factor(0, 1, 0)
    if truth < (1 + CLOSEST) ** -MOST_STEPS:  # the power next to a 64th
        assert found == 0.0 or found <= truth
    else:
        assert truth / (1 + CLOSEST) <= found <= truth


def test_where_nothing_is_met_there_is_none_and_enough_is_enough():
    assert UpTo([1e-9]).factor(0, 1, 0) == 0.0
    assert UpTo([5.0]).factor(0, 1, 0, 1.0, (1 + CLOSEST) ** 20) == (1 + CLOSEST) ** 20


@given(st.lists(FACTOR, min_size=6, max_size=20), st.integers(1, 3))
def test_the_lowest_factors_are_exact_and_no_higher_one_is_looked_for(truths, lowest):
    here = UpTo(truths)
    found = Runner(here, 1).factors(0, 1, range(len(truths)), lowest)
    alone = [UpTo(truths).factor(0, 1, trial) for trial in range(len(truths))]
    assert sorted(found)[:lowest] == sorted(alone)[:lowest]
    for trial in range(2 * lowest, len(truths)):
        enough = sorted(found[: trial // (2 * lowest) * 2 * lowest])[lowest - 1]
        assert here.first_asked.get(trial, 0.0) == enough


@pytest.mark.parametrize("within_s", [None, 60.0])
def test_processes_start_once_trials_have_taken_their_time(monkeypatch, within_s):
    monkeypatch.setattr(trials, "LAZY_S", 0.0)
    monkeypatch.setattr(Here, "one", UpTo.one)
    here = UpTo([2.0] * 5)
    pool = Elsewhere(here)
    monkeypatch.setattr(Runner, "_processes", lambda self: pool)
    assert [trial.used for trial in Runner(here, 2, within_s).trials(0, 1, range(5))] == [(0.5,)] * 5
    assert pool.done == 4  # the first one here


def test_time_that_is_up_ends_the_next_trial():
    with pytest.raises(OutOfTime):
        Runner(UpTo([2.0]), 1, -1.0).trials(0, 1, range(1))


def test_what_was_found_when_time_was_up_is_not_run_again(monkeypatch):
    monkeypatch.setattr(Here, "one", UpTo.one)
    here = UpTo([2.0] * 3)
    run = Runner(here, 1, 1.0)
    looks = iter([0.0, 0.0, 2.0])
    monkeypatch.setattr(CpuBudget, "spent_s", property(lambda _: next(looks, 0.0)))
    with pytest.raises(OutOfTime):
        run.trials(0, 1, range(3))
    assert list(here.first_asked) == [0, 1]
    here.first_asked.clear()
    assert [each.used for each in run.trials(0, 1, range(3))] == [(0.5,)] * 3
    assert list(here.first_asked) == [2]


def test_other_processes_are_told_how_many_requests_a_trial_needs(monkeypatch):
    monkeypatch.setattr(trials, "LAZY_S", -1.0)
    monkeypatch.setattr(Here, "one", lambda here, choice, count, *_: Trial((0.5,), requests=here.requests.get((choice, count)) or 7000))
    pool = Elsewhere(UpTo([]))
    monkeypatch.setattr(Runner, "_processes", lambda self: pool)
    run = Runner(UpTo([]), 2)
    run.know({(0, 3): 5000})
    assert [each.requests for each in run.trials(0, 3, range(2))] == [5000, 5000]
    assert pool.here.requests == {(0, 3): 5000}


@pytest.mark.skipif(not compiled.available(), reason="no compiler")
def test_machine_code_is_made_for_the_first_trial(monkeypatch):
    """A short load by itself is not worth it where none is cached: in plain Python, trials would use up the budget."""
    for name, value in (("_many", []), ("_loaded", {}), ("_tokens_so_far", [0]), ("warm", lambda: False)):
        monkeypatch.setattr(compiled, name, value)
    trace = Workload.drawn(10, request_rate=1.0).trace
    assert not compiled.worth(trace)
    Runner(None, 1)
    assert compiled.worth(trace)
