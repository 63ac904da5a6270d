"""On the published weight axis the step time beats the closed form on families it never saw, with rates learnt elsewhere."""

from dataclasses import replace

import pytest

from sim.rates.posterior import rates_for
from sim.specs.gpus import get_gpu
from studies.knees import by_step_time
from studies.knees.by_step_time import HOST_LOG_SD, STUDY, axis_score, fit_host, knee_predictor, leave_family_out
from studies.knees.weight_axis import Observation, closed_form, contrasts, observations, uncrossed

RATES = rates_for(get_gpu("H100"), STUDY).point
SEEN, PAIRS = observations(), contrasts()


@pytest.fixture(scope="module")
def left_out():
    return leave_family_out(RATES, SEEN)


def test_left_out_families_have_all_signs_right(left_out):
    score = axis_score("left out", left_out, SEEN, PAIRS)
    assert (score.signs, score.contrasts) == (17, 17)
    assert score.spearman >= 0.98


MISSED = "a recorded miss: 1.108; 1.103 before the bytes of quantising were counted, and 1.085 by a formula of 34 rates"


@pytest.mark.parametrize("bound", [1.10, 1.105])
@pytest.mark.xfail(reason=MISSED, raises=AssertionError, strict=True)
def test_left_out_families_have_a_median_factor_within_a_tenth(left_out, bound):
    assert axis_score("left out", left_out, SEEN, PAIRS).median_factor <= bound


def test_with_no_knee_seen_it_already_beats_the_closed_form():
    blind, closed = (axis_score("", p, SEEN, PAIRS) for p in (knee_predictor(RATES), closed_form()))
    assert blind.signs > closed.signs
    assert blind.median_factor < closed.median_factor
    assert blind.worst_factor < closed.worst_factor
    assert blind.spearman > closed.spearman


def test_a_family_does_not_enter_its_own_prediction(left_out):
    doubled = [Observation(o.family, o.run, o.shape, o.context_tokens, o.knee * (2 if o.family == "gemma3" else 1)) for o in SEEN]
    before, after = left_out, leave_family_out(RATES, doubled)
    gemma, qwen = (next(o for o in SEEN if o.family == f) for f in ("gemma3", "qwen2.5"))
    assert after(gemma.shape, gemma.context_tokens) == pytest.approx(before(gemma.shape, gemma.context_tokens))
    assert after(qwen.shape, qwen.context_tokens) > before(qwen.shape, qwen.context_tokens)


@pytest.mark.parametrize(("spread", "within"), [(1.0, 0.12), (20.0, 0.002)], ids=["pulled", "free"])
def test_host_costs_are_recovered_from_the_formulas_own_knees(monkeypatch, spread, within):
    """Where nothing pulls them they are found. The pull towards the posterior leaves c0, one of its spreads away, 11.7 % short of that."""
    monkeypatch.setattr(by_step_time, "HOST_LOG_SD", {name: spread * sd for name, sd in HOST_LOG_SD.items()})
    true = replace(RATES, c0_s=0.6 * RATES.c0_s, c_seq_s=2 * RATES.c_seq_s)
    made = [Observation(o.family, o.run, o.shape, o.context_tokens, knee_predictor(true)(o.shape, o.context_tokens)) for o in SEEN]
    found = fit_host(RATES, made)
    assert found.c0_s == pytest.approx(true.c0_s, rel=within)
    assert found.c_seq_s == pytest.approx(true.c_seq_s, rel=within)


def test_the_uncrossed_cell_is_read_as_a_bound():
    shape, context, last = uncrossed()
    assert (shape.name, context, last) == ("qwen2.5-7b", 2048, 48)
