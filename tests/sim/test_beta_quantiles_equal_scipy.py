"""The plain Beta distribution of the recall intervals is scipy's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc, betaincinv

from sim.beta import beta_cdf, beta_quantile
from sim.errors import UsageError

SHAPES = st.floats(0.5, 500)


@given(SHAPES, SHAPES, st.floats(0, 1))
def test_cdf(a, b, x):
    assert beta_cdf(a, b, x) == pytest.approx(betainc(a, b, x), abs=1e-11)


@given(SHAPES, SHAPES, st.floats(0.01, 0.99))
def test_quantile(a, b, share):
    assert beta_quantile(a, b, share) == pytest.approx(betaincinv(a, b, share), rel=1e-9)


@pytest.mark.parametrize(("a", "b", "x"), [(0, 1, 0.5), (1, -1, 0.5), (float("nan"), 1, 0.5), (1, 1, 1.5), (1, 1, float("nan"))])
def test_no_such_distribution_or_share(a, b, x):
    with pytest.raises(UsageError, match="no probability"):
        beta_cdf(a, b, x)
