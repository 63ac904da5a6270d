"""A product has every combination once; a Latin hypercube has one cell in each of N equal parts of each axis."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import UsageError
from sim.sweeps.design import Design, Range

VALUES = st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True)


@given(st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=3))
def test_a_product_has_every_combination_once(axes):
    design = Design(axes)
    cells = list(design.cells())
    assert len(cells) == len(set(cells)) == design.count == math.prod(map(len, axes.values()))
    table = np.arange(design.count).reshape(design.shape)
    for place, cell in enumerate(cells):
        at = [design.coords()[key][1].index(value) for key, value in zip(axes, cell, strict=True)]
        assert table[tuple(at)] == place


@given(st.integers(1, 40), st.integers(0, 5), st.booleans())
def test_a_hypercube_has_one_cell_in_each_part_of_a_range(samples, seed, log):
    design = Design({"x": Range(1.0, 1000.0, log), "kind": ["a", "b"]}, samples, seed)
    drawn = np.array([cell[0] for cell in design.cells()])
    share = np.log10(drawn) / 3 if log else (drawn - 1.0) / 999.0
    within = np.sort(share) * samples - np.arange(samples)  # the parts, in order
    assert (np.abs(within - 0.5) <= 0.5 + 1e-3).all()
    assert list(design.cells()) == list(Design(design.axes, samples, seed).cells())
    assert design.coords()["kind"] == ("sample", [cell[1] for cell in design.cells()])


@given(st.integers(-5, 5), st.integers(1, 20), st.floats(0, 1, exclude_max=True))
def test_between_whole_numbers_lie_whole_numbers(low, more, share):
    value = Range(low, low + more).at(share)
    assert isinstance(value, int)
    assert low <= value <= low + more


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Design({"x": []}),
        lambda: Design({"x": [1, 1]}),
        lambda: Design({"x": Range(1, 2)}),
        lambda: Design({}, 3),
        lambda: Range(2, 1),
        lambda: Range(0, 1, log=True),
        lambda: Range(0, math.inf),
    ],
)
def test_what_is_no_design_is_refused(wrong):
    with pytest.raises(UsageError):
        wrong()
