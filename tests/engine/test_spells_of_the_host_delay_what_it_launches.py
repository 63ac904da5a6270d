"""Launching is later in the mean than in the middle: iterations that no graph holds are, as far as no GPU hides it, and no others."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.bill import GRAPH_TOKENS
from sim.engine.overlap import HostWork
from sim.engine.steptime import StepTime
from sim.engine.ticks import to_ticks
from sim.errors import UsageError
from sim.precision import Precision
from sim.price import step_time_s
from sim.specs.models import get_model
from tests.price.shapes import plausible_rates

MODEL, RATES, LATE_S = get_model("Qwen2.5-7B"), plausible_rates(), 4e-3


def steps(late_s: float, launching_s: float = 20e-3) -> StepTime:
    rates = replace(RATES, eager_layer_s=launching_s / MODEL.layers)
    return StepTime(MODEL, Precision(), rates, host=HostWork(late_launch_s=late_s))


def later(tokens: int, launching_s: float = 20e-3, head_start: int = 0) -> int:
    """Ticks by which LATE_S makes a chunk beside eight decodes later."""
    on, off = (steps(s, launching_s).mixed(8, 8192, 0, 8192, [(tokens, tokens, 1)], head_start) for s in (LATE_S, 0.0))
    return on - off


def test_what_a_graph_holds_is_not_launched_and_not_late():
    assert later(GRAPH_TOKENS - 8) == 0
    assert later(GRAPH_TOKENS - 7) > 0


def test_where_launching_takes_longer_than_the_gpu_all_of_it_shows():
    assert later(600, launching_s=0.2) == pytest.approx(to_ticks(LATE_S), rel=0.1)


def test_a_gpu_that_takes_twice_as_long_hides_all_of_it():
    assert later(8000) == 0


@given(st.integers(GRAPH_TOKENS, 8000), st.integers(0, 3000), st.floats(1e-3, 0.2))
def test_longer_chunks_show_no_more_of_it_and_never_more_than_all(tokens, more, launching_s):
    one, other = later(tokens, launching_s), later(tokens + more, launching_s)
    assert 0 <= other <= one <= to_ticks(LATE_S)


@given(st.integers(GRAPH_TOKENS, 3000), st.floats(0.0, 50e-3))
def test_a_head_start_never_shows_more_of_it(tokens, ahead_s):
    assert later(tokens, head_start=to_ticks(ahead_s)) <= later(tokens)


def test_decodes_are_never_late():
    assert steps(LATE_S).stretch(8, 8192) == steps(0.0).stretch(8, 8192)


def test_it_is_no_negative_time():
    with pytest.raises(UsageError, match="host work"):
        HostWork(late_launch_s=-1e-3)


def test_the_price_of_the_iteration_itself_stays():
    plain = steps(0.0)
    shape = plain.shapes([100] * 8, [(600, 600, 1)])[0]
    assert np.isclose(step_time_s(plain.bill(shape), plain._rates), step_time_s(steps(LATE_S).bill(shape), steps(LATE_S)._rates))
