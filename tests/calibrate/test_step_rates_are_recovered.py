"""From cells made by the formula, the fit gives the rates back, predicts cells it did not see, and passes its gates."""

import dataclasses

import numpy as np
import pytest

from calibrate.sampling import Diagnostics, Settings, UnconvergedError
from calibrate.steps.fit import StepFit
from calibrate.steps.held_out import cell_folds, held_out, score
from calibrate.steps.laplace import HOST_SD
from calibrate.steps.random_rates import prior_draws, value
from calibrate.steps.step_model import log_likelihood, log_times, predictive, sigma_draws
from sim.cost.rates import UNITS
from tests.calibrate.steps import PRIORS, TRUE, TRUE_RATES, synthetic


def test_the_true_rates_lie_in_their_99_percent_intervals(step_posterior):
    for name in step_posterior.learnt:
        low, high = np.quantile(getattr(step_posterior.rates, name), [0.005, 0.995])
        assert low <= TRUE[name] <= high, name


def test_every_rate_is_narrower_than_before_and_the_unseen_ones_are_not(step_posterior):
    before = prior_draws(PRIORS, 4000, np.random.default_rng(5))
    for name in UNITS:
        ratio = np.std(np.log(getattr(step_posterior.rates, name))) / np.std(np.log(getattr(before, name)))
        # small kernels and weights are told from the fixed cost by other measurements: their priors are narrow already
        most = 1.1 if name in ("kernel_s", "beta") else 0.8
        assert ratio < most if name in step_posterior.learnt else 0.9 < ratio < 1.1, (name, ratio)


def test_model_error_is_found(step_posterior):
    decode = np.median(step_posterior.sigma[:, 0])
    assert 0.004 < decode < 0.015  # made with 1 %; a Student-t scale is a little smaller than a standard deviation


def test_the_gates_pass_on_this_fit_and_fail_by_name_on_a_bad_one(step_posterior):
    step_posterior.diagnostics.require()
    with pytest.raises(UnconvergedError, match=r"R-hat 1\.200 .* size 12 < 400; 3 divergent"):
        Diagnostics(1.2, 12.0, 3).require()
    with pytest.raises(UnconvergedError, match="R-hat nan"):
        Diagnostics(float("nan"), 1000.0, 0).require()


def test_a_fold_is_predicted_by_a_fit_that_did_not_see_it(step_fit):
    labels = cell_folds(step_fit.cells, 2, np.random.default_rng(0))
    held = held_out(step_fit.cells, PRIORS, labels, HOST_SD, seed=2)
    scores = held.scores(step_fit.cells)
    assert scores.n == len(step_fit.cells)
    assert scores.median < 0.02
    assert 0.75 <= scores.coverage <= 1.0
    # changing a fold's own measurements must not change its prediction: it was not seen
    doubled = np.where(labels == "fold 1", 2 * step_fit.cells.step_s, step_fit.cells.step_s)
    again = held_out(dataclasses.replace(step_fit.cells, step_s=doubled), PRIORS, labels, HOST_SD, seed=2)
    np.testing.assert_array_equal(again.median_s[labels == "fold 1"], held.median_s[labels == "fold 1"])
    assert not np.allclose(again.median_s[labels == "fold 2"], held.median_s[labels == "fold 2"])


def again(step_fit, **how):
    fit = StepFit(step_fit.cells, PRIORS, Settings(draws=100, tune=100, chains=2, seed=3, **how))
    return fit.posterior()


@pytest.fixture(scope="module")
def few(step_fit):
    """A sample too small for the gates."""
    return again(step_fit)


def test_the_same_seed_gives_the_same_draws(step_fit, few):
    first, second = few, again(step_fit)
    np.testing.assert_array_equal(first.rates.beta, second.rates.beta)
    np.testing.assert_array_equal(first.rates.gather_s, second.rates.gather_s)


def test_a_sample_that_fails_a_gate_is_taken_anew_with_more_draws(step_fit, few, step_posterior):
    assert few.diagnostics.failures()
    assert again(step_fit, again=150).draws == 2 * 150
    assert step_posterior.draws == 2 * 1000  # `anew` was not needed


def test_repeats_of_a_cell_stay_in_one_fold():
    cells = synthetic(np.random.default_rng(0), models=("Qwen2.5-3B",))
    twice = cells.take(np.concatenate([np.arange(len(cells))] * 2))
    folds = cell_folds(twice, 4, np.random.default_rng(1))
    assert (folds[: len(cells)] == folds[len(cells) :]).all()
    assert np.unique(folds).size == 4


def test_the_pointwise_density_is_scipys_student_t(step_fit):
    from scipy import stats

    cells = step_fit.cells
    time, sigma = log_times(cells, TRUE_RATES), np.full((1, 4), 0.02)
    expected = stats.t.logpdf(np.log(cells.step_s), df=5, loc=time[0], scale=np.sqrt(0.02**2 + cells.repeat_sd**2))
    np.testing.assert_allclose(log_likelihood(cells, time, sigma)[0], expected, rtol=1e-10)


def test_prior_predictive_times_are_positive_and_a_7b_step_is_never_ten_seconds():
    cells = synthetic(np.random.default_rng(0), models=("Qwen2.5-7B",))
    rng = np.random.default_rng(1)
    rates = prior_draws(PRIORS, 500, rng)
    times = predictive(cells, log_times(cells, rates), sigma_draws(500, rng), rng)
    assert (times > 0).all()
    assert np.quantile(times, 0.999) < 10
    assert np.quantile(times[:, cells.kind == "decode"], 0.001) > 1e-3


def test_a_rate_never_passes_its_datasheet_peak():
    z = np.linspace(-8, 8, 101)
    for prior in PRIORS.values():
        draws = value(prior, z)
        assert (np.diff(draws) > 0).all()
        assert value(prior, 0.0) == pytest.approx(prior.median)
        assert (draws <= prior.upper).all()


def test_rates_without_evidence_are_not_free(step_fit):
    assert set(step_fit.model.free) == {
        "c0_s", "c_seq_s", "c_prefill_s", "launch_layer_s", "kernel_s", "beta", "beta_kv", "linear_flops_per_s", "attention_flops_per_s",
    }  # fmt: skip


def test_scores_count_errors_and_hits():
    one = np.array([1.0, 1.0, 1.0])
    scores = score(one, np.array([0.9, 0.9, 1.1]), np.array([1.0, 1.1, 1.2]), np.array([1.1, 1.2, 1.3]))
    assert (scores.n, scores.median, scores.worst) == (3, pytest.approx(0.1), pytest.approx(0.2))
    assert scores.coverage == pytest.approx(2 / 3)
