"""The plain Beta distribution of the recall intervals is scipy's."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import betainc, betaincinv

from sim.errors import UsageError
from sim.results.beta import beta_cdf, beta_quantile

SHAPES = st.floats(0.5, 500)


@given(SHAPES, SHAPES, st.floats(0, 1))
@example(0.5, 0.5, math.nextafter(1, 0))
def test_cdf(a, b, x):
    # scipy's own value is off by 3e-9 next to 1 (the arcsine law below shows it), so there it is asked for the other tail
    expected = betainc(a, b, x) if x <= 0.5 else 1 - betainc(b, a, 1 - x)
    assert beta_cdf(a, b, x) == pytest.approx(expected, abs=1e-11)


@given(st.floats(0, 1))
@example(math.nextafter(1, 0))
def test_cdf_of_the_arcsine_law(x):
    expected = 2 / math.pi * math.asin(math.sqrt(x)) if x <= 0.5 else 1 - 2 / math.pi * math.asin(math.sqrt(1 - x))
    assert beta_cdf(0.5, 0.5, x) == pytest.approx(expected, abs=1e-13)


@given(SHAPES, SHAPES, st.floats(0.01, 0.99))
def test_quantile(a, b, share):
    assert beta_quantile(a, b, share) == pytest.approx(betaincinv(a, b, share), rel=1e-9)


@pytest.mark.parametrize(("a", "b", "x"), [(0, 1, 0.5), (1, -1, 0.5), (float("nan"), 1, 0.5), (1, 1, 1.5), (1, 1, float("nan"))])
def test_no_such_distribution_or_share(a, b, x):
    with pytest.raises(UsageError, match="no probability"):
        beta_cdf(a, b, x)
