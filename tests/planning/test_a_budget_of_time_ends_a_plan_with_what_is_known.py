"""A plan ends when its time is up, or at SIGTERM, with the count that it knows by then; neighbours not told apart are one answer."""

import json
import signal
import subprocess
import sys
import time

import pytest

from sim.planning.cpu_budget import CpuBudget, OutOfTime
from sim.planning.race import CandidateState, search
from sim.planning.trials import Runner, Trial
from sim.planning.words import conclusion
from tests.cli import run
from tests.planning.synthetic import MET, TTFT, choices, trials

ASKED = (
    "plan",
    "--gpu",
    "L40S",
    "--model",
    "Llama-3.1-8B",
    "--request-rate",
    "20",
    "--num-prompts",
    "60",
    "--slo",
    "ttft:p99<1s",
    "--workers",
    "1",
)


def spend(seconds):
    """Take so many CPU seconds."""
    ends_s = time.thread_time() + seconds
    while time.thread_time() < ends_s:
        pass


class Slow:
    """A trial takes 10 ms of CPU."""

    def one(self, choice, count, trial):
        spend(0.01)
        return MET


class Waits:
    """A trial waits for 10 ms, as on a busy machine."""

    def one(self, choice, count, trial):
        time.sleep(0.01)
        return MET


def for_so_many(most, trial):
    """Trials `trial(choice, number)` until more than `most` are wanted in all: then time is up."""
    done = 0

    def trials_of(choice, count, wanted):
        nonlocal done
        done += len(wanted)
        if done > most:
            raise OutOfTime
        return [trial(choice, i) for i in wanted]

    return trials_of


def test_time_that_is_up_ends_the_race():
    running = Runner(Slow(), 1, within_s=0.2)
    with pytest.raises(OutOfTime):
        running._each(Slow.one, [(0, 1, trial) for trial in range(1000)])


def test_a_busy_machine_takes_nothing_from_the_budget():
    assert Runner(Waits(), 1, within_s=0.2)._each(Waits.one, [(0, 1, trial) for trial in range(40)]) == [MET] * 40


def test_other_processes_count_while_they_run():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            budget = CpuBudget(0.5)
            budget.processes = (other.pid,)
            ends_s = time.monotonic() + 600
            while budget.spent_s <= 0.5 and time.monotonic() < ends_s:
                time.sleep(0.05)
            with pytest.raises(OutOfTime):
                budget.check()
        finally:
            other.kill()


def test_what_is_certain_by_then_is_the_answer():
    until = for_so_many(150, lambda choice, i: MET if choice else Trial((2.0 if i % 12 == 11 else 0.5,)))
    plan, _ = search(choices([1.0, 2.0]), TTFT, until, 1)
    assert plan.ended == "time is up"
    assert "time is up" in conclusion(plan).lower()


def test_cheaper_ones_that_are_undecided_by_then_are_named():
    until = for_so_many(50, lambda choice, i: MET if choice or i % 10 != 3 else Trial((2.0,)))
    plan, _ = search(choices([1.0, 2.0, 3.0]), TTFT, until, 1)
    assert "Buy 1, 2.00 USD/hour: it does with a chance of 1.00" in conclusion(plan)
    assert "Cheaper, and undecided at 95 %: 0, 1.00 USD/hour, 0.90" in conclusion(plan)


@pytest.mark.parametrize("most", [1, 2, 5, 9])
def test_no_count_is_named_by_a_few_trials(most):
    plan, _ = search(choices([1.0, 2.0, 3.0]), TTFT, for_so_many(most, lambda choice, i: MET), 1)
    assert plan.best is None
    assert "No count was tried often enough to be named: the likeliest, 0, 1.00 USD/hour" in conclusion(plan)


def test_what_is_held_back_secures_a_count_that_can_be_bought():
    """Sixty trials over forty choices tell little; the rest of the budget goes to one count, and on to one more where that misses."""
    ran, most = [], [60]

    def mostly(choice, count, wanted):
        if len(ran) + len(wanted) > most[0]:
            raise OutOfTime
        ran.extend((choice, count, i) for i in wanted)
        return [MET if count > 2 or i % 6 else Trial((2.0,)) for i in wanted]

    plan, _ = search(choices([1.0 + 0.01 * i for i in range(40)]), TTFT, mostly, 8)
    assert plan.best is None
    ran.clear()
    plan, _ = search(choices([1.0 + 0.01 * i for i in range(40)]), TTFT, mostly, 8, release=lambda: most.__setitem__(0, 110))
    assert plan.ended
    assert plan.best.chance.low >= 0.5
    assert "Buy " in conclusion(plan)


def test_a_count_that_lies_near_its_limit_is_not_named_by_a_few_trials():
    """Eight trials of one replica hold, but scatter so widely that the next may not; two replicas have room."""
    near = [0.95, 0.7, 0.98, 0.75, 0.9, 0.8, 0.97, 0.85]

    def scattered(choice, count, wanted):
        if len(ran) + len(wanted) > most[0]:
            raise OutOfTime
        ran.extend(wanted)
        return [Trial((near[i % 8] / count**0.5,)) for i in wanted]

    ran, most = [], [8]
    plan, _ = search(choices([1.0]), TTFT, scattered, 4, release=lambda: most.__setitem__(0, 20))
    assert plan.best.replicas == 2
    assert plan.states[0].candidates[1].chance.met == len(plan.states[0].candidates[1].trials) >= 4
    assert "At least 1, at most 2. Buy 2 replicas" in conclusion(plan)


def test_the_least_and_the_most_are_said():
    """Of 40 replicas 12 are enough at some draws, 14 at all; the bound knows that 10 are too few."""

    def enough(choice, count, wanted):
        ran.extend(wanted)
        if len(ran) > 110:
            raise OutOfTime
        return [MET if count >= 14 or (count >= 12 and i % 12) else Trial((2.0,)) for i in wanted]

    ran: list[int] = []
    plan, _ = search(choices([1.0]), TTFT, enough, 40, states=[CandidateState(fails=10)])
    assert plan.ended
    assert plan.best.replicas == 14
    assert plan.best.chance.low >= 0.5
    low = plan.at_least(plan.best)
    assert 11 <= low <= 13
    assert f"At least {low}, at most 14. Buy 14 replicas of 0, 14.00 USD/hour" in conclusion(plan)


def test_neighbours_that_trials_do_not_tell_apart_are_one_answer():
    plan, _ = search(choices([1.0]), TTFT, trials([[0.0, 0.95, 1.0]], 0), 3)
    assert (plan.winner.replicas, plan.fewest(plan.winner).replicas) == (3, 2)
    assert "=> 2 to 3 replicas of 0: 3 (3 GPUs, 3.00 USD/hour) meet" in conclusion(plan)


def test_the_command_keeps_its_budget():
    answer = json.loads(run(*ASKED, "--within", "1s", "--json").stdout)
    assert answer["finished"] is False
    assert answer["lasts"] == "for good"


def test_sigterm_prints_what_is_known():
    process = subprocess.Popen([sys.executable, "-m", "simctl", *ASKED, "--within", "10m", "--progress"], stdout=-1, stderr=-1, text=True)
    process.stderr.readline()  # the first stage is over
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "=> stopped before the answer was certain." in " ".join(said.split())
