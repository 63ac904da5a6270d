"""Ranks of a right posterior are uniform; a narrow, wide or biased one is told, by its name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import UsageError
from studies.sbc.__main__ import main
from studies.sbc.ranks import family_p, judge, rank, uniformity
from studies.sbc.sampled import KEPT


def ranks(width, shift, runs=300, seed=0):
    """Of a normal mean seen through one normal observation, whose posterior is reported `width` times as wide and `shift` sd off."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=runs)
    seen = truth + rng.normal(size=runs)
    draws = seen[:, None] / 2 + np.sqrt(0.5) * (shift + width * rng.normal(size=(runs, KEPT)))
    return np.array([rank(t, d, rng) for t, d in zip(truth, draws, strict=True)])


def test_a_right_posterior_is_uniform():
    assert uniformity("mean", ranks(1.0, 0.0)).p > 0.05


@pytest.mark.parametrize(("width", "shift", "outer"), [(0.6, 0.0, (0.3, 1.0)), (1.7, 0.0, (0.0, 0.12)), (1.0, 0.4, (0.15, 0.5))])
def test_a_wrong_one_is_not_and_the_figures_say_how(width, shift, outer):
    found = uniformity("mean", ranks(width, shift))
    assert found.p < 1e-3
    assert outer[0] < found.ends < outer[1]
    assert (found.mean < 0.42) == (shift > 0)


def test_the_worst_comes_first_and_counts_for_the_family():
    found = judge({"right": ranks(1.0, 0.0), "narrow": ranks(0.5, 0.0)})
    assert [u.parameter for u in found] == ["narrow", "right"]
    assert family_p(found) == pytest.approx(2 * found[0].p)


@given(st.integers(1, 80), st.integers(0, 2**32 - 1))
def test_ranks_lie_in_the_unit_interval_whatever_ties_there_are(draws, seed):
    rng = np.random.default_rng(seed)
    assert 0 <= rank(1.0, rng.integers(0, 3, draws).astype(float), rng) <= 1


def test_too_few_runs_foreign_ranks_and_unknown_models_are_usage_errors():
    with pytest.raises(UsageError, match="too few"):
        uniformity("mean", np.linspace(0, 1, 10))
    with pytest.raises(UsageError, match="outside"):
        uniformity("mean", np.linspace(0, 2, 30))
    with pytest.raises(UsageError, match="unknown model 'steps'; known: step, "):
        main(["steps"])
    with pytest.raises(UsageError, match="3 runs are too few"):
        main(["--runs", "3"])
