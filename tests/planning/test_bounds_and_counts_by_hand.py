"""Bounds, next counts, hours and sustained rates of a plan, counted by hand: one unit more or less anywhere is another answer."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from sim.planning.bounds import ENOUGH, NO_LOAD, TRIALS, Bounds, Deadline, OfferedLoad, _lasting_load, _load, _Times, deadline_of, states_of
from sim.planning.choices import Choice, Part
from sim.planning.day import hours_of
from sim.planning.highest_rate import sustained
from sim.planning.race import Candidate, CandidateState
from sim.planning.trials import Trial
from sim.results.chance import CERTAINTY, Chance, ruled_out
from sim.slo import parse_slo
from sim.workload.trace import Trace
from sim.workload.workload import Workload
from tests.planning.offered import choices

COUNT = 10
NUMBERS = np.arange(1, COUNT + 1)
# ten calls a second apart: prompts of 10 to 100 tokens, answers of 1 to 10
TRACE = Trace(
    NUMBERS - 1.0, 10 * NUMBERS, NUMBERS, np.zeros(COUNT), [str(n) for n in NUMBERS], [None] * COUNT, [0] * COUNT, [None] * COUNT
)  # fmt: skip
MOST = Deadline(first_share=0.9, first_s=2.0, token_share=0.9, token_s=0.1)
ALL = 2**60


def test_the_least_work_leaves_out_the_largest_that_may_be_late():
    # one prompt of ten may be late, two answers: 10 + ... + 90 tokens, and 0 + ... + 7 after the first ones
    assert _load(TRACE, 0, ALL, MOST) == OfferedLoad(9.0 + 2.0, 450.0, 32, pytest.approx(9.0 + 2.0 + 0.1 * 9), 28.0, 64)


def test_a_range_of_prompts_has_its_own_work_and_everyones_latecomers():
    found = _load(TRACE, 30, 80, MOST)  # 40, 50, 60, 70, 80
    assert (found.prompt_tokens, found.tokens) == (40 + 50 + 60 + 70, 3 + 4 + 5)
    assert _load(TRACE, 80, 80, MOST) == NO_LOAD


def test_without_a_deadline_of_tokens_none_is_due():
    found = _load(TRACE, 0, ALL, Deadline(first_share=0.9, first_s=2.0))
    assert (found.tokens, found.last_s) == (0.0, math.inf)


def test_what_has_no_time_of_its_own_has_no_deadline():
    waits = replace(TRACE, arrival_s=np.where(NUMBERS == 3, np.nan, TRACE.arrival_s))
    assert _load(waits, 0, ALL, MOST) == NO_LOAD
    assert _load(replace(TRACE, cancel_s=[1.0] * COUNT), 0, ALL, MOST) == NO_LOAD
    at_once = replace(TRACE, arrival_s=np.zeros(COUNT))
    assert (_load(at_once, 0, ALL, MOST).prompt_tokens, _load(at_once, 0, ALL, MOST).tokens) == (0.0, 0.0)


def test_a_lasting_load_is_computed_in_the_time_in_which_it_comes():
    assert _lasting_load(TRACE, 0, ALL, MOST) == OfferedLoad(9.0, 550.0, 32, 9.0, 45.0, 64)
    assert _lasting_load(TRACE, 0, 50, MOST).prompt_tokens == 150.0
    waits = replace(TRACE, arrival_s=np.where(NUMBERS == COUNT, np.nan, TRACE.arrival_s))  # it comes as often as what it waits for
    assert _lasting_load(waits, 0, ALL, MOST).tokens == 45.0
    assert _lasting_load(waits, 0, ALL, MOST).last_s == 8.0


def test_the_strictest_share_sets_the_deadline():
    found = deadline_of(parse_slo(["ttft:p90<1s ttft:p99<3s tpot:p50<60ms"], {}), {})
    assert (found.first_share, found.first_s, found.token_share, found.token_s) == pytest.approx((0.99, 3.0, 0.5, 0.06))
    assert found.finish_share == pytest.approx(0.49)
    good = deadline_of(parse_slo(["good>=95%"], {"ttft": 500.0}), {"ttft": 500.0})
    assert (good.first_share, good.first_s) == pytest.approx((0.95, 0.5))


@pytest.mark.parametrize(
    ("limit_s", "per_token_s"),
    [
        (0.04, math.inf),
        (0.06, 0.04),
        (0.08, 0.03),
        (0.1, 0.03),
        (0.2, 0.03),
    ],  # a batch beyond the last that keeps it bounds what lies between
)
def test_the_largest_batch_that_keeps_the_limit_sets_the_time_of_a_token(limit_s, per_token_s):
    times = _Times(None, Deadline(token_share=0.9, token_s=limit_s), {})
    times._ladder[64] = [(1.0, np.array([0.06])), (2.0, np.array([0.08])), (4.0, np.array([0.12]))]
    assert times._token_s(64, 0) == pytest.approx(per_token_s)


def test_enough_is_the_least_that_leaves_a_count_open():
    assert not ruled_out(CERTAINTY, ENOUGH, TRIALS)
    assert all(ruled_out(CERTAINTY, n, TRIALS) for n in range(ENOUGH))


@pytest.fixture(scope="module")
def choice():
    (found,) = choices(Workload.drawn(20, request_rate=1.0), "L4", dtype="fp8")
    return found


@pytest.mark.parametrize(("units", "fails"), [(0.0, 0), (0.5, 0), (1.0, 0), (1.01, 1), (3.0, 2), (3.2, 3)])
def test_units_that_do_not_do_end_below_those_needed(choice, monkeypatch, units, fails):
    monkeypatch.setattr(Bounds, "_units", lambda *_: units)
    slo = parse_slo(["ttft:p99<9s"], {})
    assert states_of([choice], slo, fails + 1)[0].fails == fails
    assert not states_of([choice], slo, fails + 1)[0].why
    assert "needs more than" in states_of([choice], slo, fails)[0].why


def test_a_count_that_enough_trials_allow_stays(choice, monkeypatch):
    monkeypatch.setattr(Bounds, "_replicas", lambda *_: np.arange(TRIALS, dtype=float)[::-1])
    assert states_of([choice], parse_slo(["ttft:p99<9s"], {}), 10**6)[0].fails == ENOUGH - 2  # so many allow ENOUGH - 1


@pytest.mark.parametrize(
    ("low", "high", "chance", "count"),
    [
        (4, 5, None, None), (4, 6, None, 5), (4, 9, None, 6), (0, None, None, 1), (8, None, Chance(1, 9), 10), (8, None, Chance(5, 10), 9),
        (2, None, Chance(0, 9), 3), (8, None, None, 9), (99, None, Chance(0, 9), 100),
    ],
)  # fmt: skip
def test_the_next_count_halves_gallops_or_steps(low, high, chance, count):
    candidate = {} if chance is None else {low: Candidate(0, low, chance=chance)}
    assert CandidateState(candidates=candidate).next_count(low, high, 100) == count


@pytest.mark.parametrize(("met", "count"), [({4: 0, 6: 0, 9: 1}, 6), ({4: 1, 6: 0}, 4), ({4: 0, 6: 0}, 6)])
def test_the_most_that_missed_settle_all_below(met, count):
    candidates = {n: Candidate(0, n, [Trial((0.5,))], Chance(held, 1)) for n, held in met.items()}
    assert CandidateState(candidates=candidates).next_count(2, None, 100) == count


def test_a_limit_that_is_just_met_is_not_missed():
    candidate = Candidate(0, 1, trials=[Trial((1.0, 1.0)), Trial((0.5, 1.1))])
    assert (candidate.missed, candidate.used, candidate.binding) == ((0.0, 0.5), (0.75, 1.05), 1)


def test_hours_take_the_least_count_that_holds_them():
    unit = Choice("a", None, (Part(1, 3.0, 2),))
    hours = hours_of([0.5, 1.0, 2.0, 2.5, 4.0], unit, 4, 1.0, lambda count, trials: [float(count)] * len(trials))
    assert [(each.requests_per_s, each.count, each.gpus, each.usd) for each in hours] == [
        (0.5, 1, 2, 3.0), (1.0, 1, 2, 3.0), (2.0, 2, 4, 6.0), (2.5, 3, 6, 9.0), (4.0, 4, 8, 12.0)
    ]  # fmt: skip


def test_the_sustained_rate_is_the_5_percent_quantile_with_its_order_statistics():
    found = sustained([float(n) for n in range(100, 0, -1)], 2.0)
    ranks = np.arange(1, 101)
    low = max(ranks[binom.cdf(ranks - 1, 100, 0.05) <= 0.05])
    high = min(ranks[binom.sf(ranks - 1, 100, 0.05) <= 0.05])
    assert (found.per_s, found.low, found.high) == (2.0 * 5, 2.0 * low, 2.0 * (high + 1))
    assert sustained([1.5, 2.5], 2.0).per_s == 3.0
