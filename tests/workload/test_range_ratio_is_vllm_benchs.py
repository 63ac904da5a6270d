"""`--random-range-ratio` draws whole lengths uniformly within a share of the mean, both ends included, as vLLM's bench does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import UsageError
from sim.workload.synthetic import draw_lengths
from sim.workload.workload import Workload
from tests.cli import run


@given(st.integers(1, 5000), st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_lengths_lie_in_the_range(mean, ratio, seed):
    drawn = draw_lengths(mean, 0.0, 50, np.random.default_rng(seed), ratio)
    assert drawn.min() >= max(1, np.floor(mean * (1 - ratio)))
    assert drawn.max() <= np.ceil(mean * (1 + ratio))


def test_lengths_fill_the_range_evenly():
    drawn = draw_lengths(10, 0.0, 20_000, np.random.default_rng(0), 0.5)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == list(range(5, 16))
    assert np.abs(counts / counts.mean() - 1.0).max() < 0.1


def test_a_shared_prefix_stays_whole():
    trace = Workload.drawn(200, input_len=100, range_ratio=0.2, prefix_len=64).trace
    assert trace.prompt_tokens.min() >= 64 + 80
    assert trace.prompt_tokens.max() <= 64 + 120


@pytest.mark.parametrize("ratio", [-0.1, 1.0])
def test_a_ratio_out_of_range_is_refused(ratio):
    with pytest.raises(UsageError, match="range ratio"):
        Workload.drawn(5, range_ratio=ratio)


def test_it_is_given_or_a_spread():
    given = ("simulate", "--gpu", "H100", "--num-prompts", "5", "--random-range-ratio", "0.2", "--random-length-cv", "0.5")
    code, _, err = run(*given)
    assert (code, err.count("\n")) == (2, 1)
