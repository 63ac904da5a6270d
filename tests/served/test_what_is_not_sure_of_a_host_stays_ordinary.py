"""Of what a low load shows of a host, factors that an ordinary server's may be are not carried to other loads."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.served.host_fit import Learnt
from calibrate.served.kept_host import TOKEN_SD, kept
from sim.rates.host import FACTORS, Host
from sim.results.intervals import Z_90
from studies.learned_hosts import Judged, summary

USUAL = Host(launch_sd=0.4, work_sd=0.4, step_sd=0.05, clock_sd=0.05, api_s={"request_s": 1e-3, "token_s": 6e-5})
LOGS = st.floats(-2.0, 2.0).filter(lambda log: log == 0.0 or abs(log) > 1e-3)


@given(logs=st.tuples(*[LOGS] * 4), sds=st.tuples(*[st.floats(0.01, 1.0)] * 4))
def test_a_factor_is_as_learnt_or_ordinary_and_wider_by_what_was_seen(logs, sds):
    values = dict(zip(FACTORS, map(math.exp, logs), strict=True)) | {f"{n}_sd": sd for n, sd in zip(FACTORS, sds, strict=True)}
    host = kept(Learnt(replace(USUAL, **values), USUAL))
    for name, log, sd in zip(FACTORS, logs, sds, strict=True):
        found = getattr(host, name), getattr(host, f"{name}_sd")
        sure = abs(log) > Z_90 * sd
        assert found == pytest.approx((math.exp(log), sd) if sure else (1.0, math.hypot(sd, log)))


@pytest.mark.parametrize(("off", "same"), [(1.0, True), (-1.0, True), (2.0, False), (-2.0, False)])
def test_a_time_per_token_that_other_loads_may_not_show_is_the_packaged_servers(off, same):
    learnt = replace(USUAL, api_s={"request_s": 3e-3, "token_s": 6e-5 * math.exp(off * Z_90 * TOKEN_SD * 0.99)})
    host = kept(Learnt(learnt, USUAL))
    assert host.api_s["request_s"] == 3e-3
    assert (host.api_s["token_s"] == 6e-5) is same


def test_loads_that_became_worse_are_counted_by_half_of_the_models():
    errors = [dict.fromkeys(("ttft_s", "tpot_s", "e2el_s"), each) for each in (0.02, -0.031, -0.029)]
    rows = [Judged("a", model, "open 10/s", errors[0], learnt) for model in ("Llama-3.1-8B", "Qwen2.5-7B") for learnt in errors[1:]]
    lines = [line.split() for line in summary(rows).splitlines()[1:]]
    assert [line[-2:] for line in lines] == [["1", "1.1"]] * len(lines)
    assert np.array(sorted({line[0] for line in lines})).tolist() == ["chosen", "held"]
