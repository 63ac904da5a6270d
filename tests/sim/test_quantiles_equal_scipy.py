"""Quantiles that do without scipy are scipy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri, stdtrit

from sim.quantiles import normal_quantile, t5_quantile

PROBABILITIES = st.lists(st.floats(1e-6, 1 - 1e-6), min_size=1, max_size=20).map(np.array)


@given(PROBABILITIES)
def test_normal(p):
    np.testing.assert_allclose(normal_quantile(p), ndtri(p), rtol=1e-9, atol=1e-9)


@given(PROBABILITIES)
def test_student_t_of_five_degrees(p):
    np.testing.assert_allclose(t5_quantile(p), stdtrit(5.0, p), rtol=1e-6, atol=1e-9)


def test_a_column_keeps_its_shape():
    assert normal_quantile(np.full((3, 2), 0.5)).shape == (3, 2)
    assert (t5_quantile(np.array([0.5])) == 0.0).all()
