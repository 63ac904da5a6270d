"""A package that is absent, and machine code that was never made, are said at once and with what to do."""

import sys
from types import SimpleNamespace

import pytest

from sim import Deployment, Workload, simulate
from sim.cluster import compiled
from simctl.text.simulate_text import SLOW_TOKENS, uncompiled
from tests.cli import run


@pytest.mark.parametrize("command", [("learn", "LOG", "--gpu", "H100"), ("calibrate", "--hw", "H100")])
def test_a_fit_without_its_sampler_ends_before_it_reads_a_file(command, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pymc", None)
    (tmp_path / "LOG").write_text("not even a log")
    code, out, err = run(*(str(tmp_path / "LOG") if word == "LOG" else word for word in command))
    assert (code, out) == (1, "")
    assert "calibration needs pymc: pip install" in err
    assert err.count("\n") == 1


def test_a_long_run_without_machine_code_says_what_makes_it(monkeypatch):
    found = simulate(Deployment.of("Qwen3-8B", "H100"), Workload.drawn(4, request_rate=2.0), draws=0)
    assert uncompiled(found) == ""
    trace = SimpleNamespace(output_tokens=SimpleNamespace(sum=lambda: SLOW_TOKENS))
    study = SimpleNamespace(workload=SimpleNamespace(trace=trace))
    long = SimpleNamespace(study=study, draws={}, event_by_event="")
    monkeypatch.setattr("sim.machine_code_cache.read", lambda _: None)
    compiled.warm.cache_clear()
    assert "python -m sim.cluster.compile_fleet" in uncompiled(long)
    monkeypatch.setenv(compiled.OFF, "1")
    assert compiled.OFF in uncompiled(long)
    monkeypatch.undo()
    compiled.warm.cache_clear()
