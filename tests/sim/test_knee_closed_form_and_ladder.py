"""The closed-form knee inverts the efficiency curve; a measured ladder crosses between its rungs or is censored."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.closed_form.knee import Knee, closed_form_knee, continuous_knee, continuous_knees, discrete_knee, eta
from sim.errors import UsageError

LADDER = [1, 2, 4, 8, 16, 32, 64]


@given(st.floats(1e-4, 10), st.floats(0.05, 0.95))
def test_efficiency_at_the_closed_form_knee_is_tau(r: float, tau: float) -> None:
    assert eta(closed_form_knee(r, tau), r) == pytest.approx(tau, abs=1e-12)


@given(st.floats(0.02, 1.5), st.floats(0.3, 0.9))
def test_the_interpolated_knee_lies_between_the_rungs_around_the_closed_form(r: float, tau: float) -> None:
    exact = closed_form_knee(r, tau)
    discrete, continuous = (f(LADDER, [eta(b, r) for b in LADDER], tau) for f in (discrete_knee, continuous_knee))
    if exact >= LADDER[-1]:
        assert continuous == discrete == Knee(64.0, True)
    elif exact > 1.001 and not any(abs(exact - b) < 1e-9 for b in LADDER):
        above = next(b for b in LADDER if b > exact)
        assert discrete == Knee(float(above), False)
        assert above / 2 <= continuous.batch <= above
        assert not continuous.censored


def test_crossing_is_linear_in_log2_of_the_batch() -> None:
    # half way in efficiency between the rungs 4 and 16 is half way in log2: batch 8
    assert continuous_knee([1, 4, 16], [1.0, 0.8, 0.5], 0.65) == pytest.approx((8.0, False))


def test_the_first_crossing_counts_even_when_the_curve_recovers() -> None:
    assert discrete_knee([1, 2, 4, 8], [1.0, 0.6, 0.7, 0.9], 0.65) == Knee(2.0, False)


def test_a_value_equal_to_tau_has_not_crossed() -> None:
    assert discrete_knee([1, 2], [1.0, 0.65], 0.65) == Knee(2.0, True)


@given(st.lists(st.floats(0.02, 1.5), min_size=1, max_size=5), st.floats(0.3, 0.9))
def test_many_curves_at_once_have_the_knees_they_have_alone(rs: list[float], tau: float) -> None:
    curves = np.array([[eta(b, r) for r in rs] for b in LADDER])
    for knee, r in zip(continuous_knees(LADDER, curves, tau), rs, strict=True):
        alone = continuous_knee(LADDER, [eta(b, r) for b in LADDER], tau)
        assert knee == (np.inf if alone.censored else pytest.approx(alone.batch, rel=1e-12))


@pytest.mark.parametrize(
    ("batches", "etas", "tau"),
    [
        ([1], [1.0], 0.65),
        ([1, 2], [1.0], 0.65),
        ([1, 4, 2], [1.0, 0.9, 0.5], 0.65),
        ([0, 1], [1.0, 0.5], 0.65),
        ([1, 2], [1.0, float("nan")], 0.65),
        ([1, 2], [1.0, -0.5], 0.65),
        ([1, 2], [1.0, 0.5], 1.0),
        ([2, 4], [0.5, 0.4], 0.65),
    ],
)
def test_a_curve_that_has_no_knee_to_speak_of_is_a_usage_error(batches, etas, tau) -> None:
    with pytest.raises(UsageError):
        continuous_knee(batches, etas, tau)
