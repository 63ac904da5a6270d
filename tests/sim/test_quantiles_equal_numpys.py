"""Medians and quantiles that import no masked arrays are NumPy's own, to the last bit."""

import numpy as np
import pytest

from sim.quantiles import median, quantiles


@pytest.mark.parametrize("size", [1, 2, 3, 20, 1000, 1001])
def test_they_are_equal_to_the_last_bit(size):
    rng = np.random.default_rng(size)
    for scale in (0.01, 1.0, 5.0):
        values, shares = np.exp(scale * rng.standard_normal(size)), [0.0, 0.05, 0.5, 0.95, 1.0, *rng.random(5)]
        assert quantiles(values, shares) == np.quantile(values, shares).tolist()
        assert quantiles(np.round(values, 1), shares) == np.quantile(np.round(values, 1), shares).tolist()
        assert median(values) == np.median(values)


def test_a_value_that_is_none_leaves_none():
    assert np.isnan(quantiles(np.array([1.0, np.nan, 2.0]), (0.1, 0.9))).all()
