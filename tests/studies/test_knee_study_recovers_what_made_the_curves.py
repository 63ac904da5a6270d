"""On curves of known ratio the study finds the ratio, the per-GPU factor, and a perfect rank; censored curves get no number."""

import numpy as np
import pytest

from sim.closed_form.knee import closed_form_knee
from sim.errors import UsageError
from studies.knees import predictors
from studies.knees.predictors import leave_one_model_out, observed_knees
from studies.knees.ranks import factor_errors
from studies.knees.study import fit_ratio, study
from tests.studies.curves import LADDER, curve, grid


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.5])
def test_the_free_fit_finds_the_ratio(alpha):
    made = curve(alpha=alpha)
    r, r2 = fit_ratio(made)
    assert r == pytest.approx(alpha * made.cell.kv_bytes / made.cell.weight_bytes, rel=1e-4)
    assert r2 == pytest.approx(1, abs=1e-8)


def test_per_gpu_factors_are_found_up_to_ladder_interpolation():
    alpha = predictors.gpu_alpha(observed_knees(grid(A=0.5, B=2.0)))
    assert alpha["A"] == pytest.approx(0.5, rel=0.08)
    assert alpha["B"] == pytest.approx(2.0, rel=0.08)


def test_the_closed_form_ranks_its_own_curves_perfectly():
    result = study(grid(A=1.0), np.random.default_rng(0), resamples=200)
    score = next(s for s in result.scores if s.predictor == "Ck/W closed-form (zero-param)")
    assert score.spearman_finite == pytest.approx(1)
    assert score.median_factor < 1.08


def test_a_curve_that_never_crosses_is_censored_at_its_last_batch():
    knees = observed_knees([curve(context=128), curve(context=32768)])
    assert knees.censored.tolist() == [True, False]
    assert knees.batch[0] == 64
    assert knees.imputed()[0] == 128


def test_the_held_out_models_knees_do_not_enter_their_own_prediction():
    curves = grid(A=1.0)
    before = leave_one_model_out(observed_knees(curves), predictors.context_only)
    changed = [curve("m0", "A", c.cell.context_tokens, 3.0, c.cell.weight_bytes) if c.cell.model == "m0" else c for c in curves]
    after = leave_one_model_out(observed_knees(changed), predictors.context_only)
    np.testing.assert_allclose(before[:3], after[:3])
    assert not np.allclose(before[3:], after[3:])


def test_calibrated_baselines_predict_a_log_linear_world():
    curves = grid(A=1.0, B=1.5)
    knees = observed_knees(curves)
    errors = factor_errors(leave_one_model_out(knees, predictors.context_and_gpu), knees.finite()[1])
    assert np.median(errors) < 1.6


def test_one_model_cannot_be_left_out():
    with pytest.raises(UsageError, match="two models"):
        leave_one_model_out(observed_knees([curve(context=8192), curve(context=32768)]), predictors.context_only)


def test_the_sweep_censors_more_at_a_lower_threshold():
    curves = [curve(f"m{i}", context=c) for i in range(2) for c in (512, 1024, 2048, 4096, 8192)]
    sweep = study(curves, np.random.default_rng(0), resamples=200).taus
    assert [t.censored for t in sweep] == sorted((t.censored for t in sweep), reverse=True)
    assert all(t.finite + t.censored == len(curves) for t in sweep)


def test_the_interpolated_knee_is_near_the_closed_form_on_a_fine_ladder():
    made = curve(ladder=tuple(range(1, 65)))
    exact = closed_form_knee(made.cell.kv_bytes / made.cell.weight_bytes)
    assert made.knee().batch == pytest.approx(exact, rel=0.01)
    assert curve(ladder=LADDER).knee().batch == pytest.approx(exact, rel=0.1)
