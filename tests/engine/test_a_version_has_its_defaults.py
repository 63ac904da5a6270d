"""An engine's version chooses what it takes unasked, and an answer for one that was not measured is wider and says so."""

import numpy as np
import pytest

from sim.cost.batch import decode_batch
from sim.cost.step_time import step_time_s
from sim.errors import UsageError
from sim.rates.load import load_rates, scope_notes
from sim.study.deployment import Deployment, plan_engine


@pytest.mark.parametrize(("version", "ahead", "share"), [("0.11.0", False, 0.9), ("0.14", True, 0.9), ("0.23.0", True, 0.92)])
def test_defaults_by_version(version, ahead, share):
    d = Deployment.of("Llama-3.1-8B", "H100", engine_version=version)
    assert plan_engine(d)[0].overlaps is ahead
    assert d.limits.memory_share == share


def test_what_is_asked_for_wins():
    d = Deployment.of("Llama-3.1-8B", "H100", engine_version="0.11.0", gpu_memory_utilization=0.8, options={"async_scheduling": True})
    assert plan_engine(d)[0].overlaps
    assert d.limits.memory_share == 0.8


def test_an_old_version_is_less_certain():
    old, new = (Deployment.of("Llama-3.1-8B", "H100", engine_version=version) for version in ("0.11.0", "0.24.0"))
    shape = decode_batch(old.model, 8.0, 500.0)
    widths = [np.std(np.log(step_time_s(d.work(shape), load_rates(d).draws, np))) for d in (old, new)]
    assert widths[0] > widths[1] + 0.02
    assert any("vllm 0.11.0 was not measured" in note for note in scope_notes(old, load_rates(old)))
    assert not any("0.24" in note for note in scope_notes(new, load_rates(new)))


def test_no_version_is_refused():
    with pytest.raises(UsageError, match="engine_version"):
        Deployment.of("Llama-3.1-8B", "H100", engine_version="latest")
