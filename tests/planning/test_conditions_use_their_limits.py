"""A condition says how much of its limit a run uses."""

import pytest

from sim.errors import UsageError
from sim.slo import parse_slo


def test_conditions_use_their_limits():
    good, failed, tpot = parse_slo(["good>=90%,failed<=0.1 tpot:p50<=20ms"], {"ttft": 100.0})
    summary = {"request_goodput": 9.5, "duration": 10.0, "num_prompts": 100, "completed": 95, "failed": 5, "median_tpot_ms": 30.0}
    assert good.limit_used(summary) == pytest.approx(0.5)
    assert failed.limit_used(summary) == pytest.approx(0.5)
    assert tpot.limit_used(summary) == pytest.approx(1.5)
    assert tpot.limit_used({"median_tpot_ms": float("nan")}) == float("inf")
    with pytest.raises(UsageError, match="not a condition"):
        parse_slo(["tpot:p50<1.2.3ms"], {})
