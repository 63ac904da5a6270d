"""Power grows with work up to the card's limit, and comes out as it was read beside loads that were served."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.measured_files import packaged_measurements
from sim.results.power import IDLE, MOST, watts
from sim.specs.gpus import get_gpu
from studies.power import loads

SHARES = st.floats(0.0, 1.0)


@given(SHARES, SHARES, SHARES, SHARES)
def test_more_work_never_draws_less(memory, compute, kernels, more):
    gpu = get_gpu("H100")
    before = watts((memory, compute, kernels), gpu)
    assert IDLE * gpu.power_w <= before <= watts((memory + more, compute, kernels), gpu) <= MOST * gpu.power_w
    assert before <= watts((memory, compute + more, kernels), gpu)


def test_a_server_drew_what_is_said():
    path = next(path for path in packaged_measurements() if path.stem == "served_mistral-24b_fp8" and path.parent.name == "h100")
    found = list(loads(path))
    assert len(found) == 3
    for _, drawn, used in found:
        assert watts(used, get_gpu("H100")) / 700.0 == pytest.approx(drawn, rel=0.1)
    assert np.all(np.diff([drawn for _, drawn, _ in found]) > 0)
