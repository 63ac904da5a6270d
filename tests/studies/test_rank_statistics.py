"""Spearman agrees with its definition under ties; its bootstrap covers; factor errors are symmetric."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sim.errors import UsageError
from studies.knees.ranks import factor_errors, spearman, spearman_bootstrap


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=30))
def test_spearman_with_ties_is_scipys(pairs):
    x, y = np.array(pairs, dtype=float).T
    if np.ptp(x) and np.ptp(y):
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    else:
        assert np.isnan(spearman(x, y))


def test_the_bootstrap_interval_holds_the_estimate_and_follows_its_seed():
    rng = np.random.default_rng(3)
    x = rng.normal(size=40)
    y = x + rng.normal(size=40)
    first = spearman_bootstrap(x, y, np.random.default_rng(1), 2000)
    assert first == spearman_bootstrap(x, y, np.random.default_rng(1), 2000)
    assert first[0] < spearman(x, y) < first[1]


@pytest.mark.filterwarnings("error")
def test_a_constant_predictor_has_no_rank_and_no_interval():
    assert np.isnan(spearman_bootstrap(np.ones(9), np.arange(9), np.random.default_rng(0), 500)).all()


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=20))
def test_a_factor_error_is_the_same_both_ways(pairs):
    p, o = np.array(pairs).T
    np.testing.assert_allclose(factor_errors(p, o), factor_errors(o, p), rtol=1e-12)


@pytest.mark.parametrize(("x", "y"), [([1, 2], [1]), ([], []), ([1, np.nan], [1, 2]), ([1, 2], [np.inf, 1])])
def test_samples_that_cannot_be_ranked_are_usage_errors(x, y):
    with pytest.raises(UsageError):
        spearman(x, y)


def test_factor_errors_of_non_positive_numbers_are_usage_errors():
    with pytest.raises(UsageError, match="positive"):
        factor_errors([1.0, -1.0], [1.0, 1.0])
