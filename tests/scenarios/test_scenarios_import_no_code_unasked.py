"""A scenario file of unknown origin runs no code: a scheduler class that it names is imported only with --allow-code."""

import sys

import pytest

from calibrate.design import designed
from tests.cli import run

TEXT = "question: How fast?\ncommand: simulate\nreport: [completed]\noptions: {{gpu: A10, num-prompts: 3, draws: 0{}}}\n{}"
CLASS = "hostile_code.Scheduler"
PLACES = {
    "options": TEXT.format(f", engine: {CLASS}", ""),
    "options, in a list": TEXT.format(f", engine: [{CLASS}]", ""),
    "sweep": TEXT.format("", f"sweep: {{engine: [vllm, {CLASS}]}}\n"),
}


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "hostile_code.py").write_text("from sim.engine.schedulers import VllmScheduler as Scheduler\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("hostile_code", None)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.usefixtures("code")
def test_only_when_asked(place, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(PLACES[place])
    for more in ((), ("--dry-run",)):
        result = run("run", str(path), *more)
        assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert "would import code; --allow-code trusts it" in result.stderr
    assert "hostile_code" not in sys.modules
    assert run("run", str(path), "--allow-code").code == 0
    assert "hostile_code" in sys.modules


@pytest.mark.usefixtures("code")
def test_what_the_user_types_is_the_users(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(PLACES["sweep"])
    assert run("run", str(path), "--set", "engine=vllm").code == 0
    assert "hostile_code" not in sys.modules
    assert run("run", str(path), "--set", f"engine={CLASS}").code == 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.usefixtures("code")
def test_designs_are_told_the_same(place, tmp_path, monkeypatch):
    monkeypatch.setattr(designed, "SIMULATIONS", 30)
    path = tmp_path / "study.yaml"
    path.write_text(PLACES[place])
    design = ("design", str(path), "--hw", "h100", "--budget", "10s", "--metric", "mean_e2el_ms")
    result = run(*design)
    assert (result.code, result.stderr.count("\n")) == (2, 1)
    assert "would import code; --allow-code trusts it" in result.stderr
    assert "hostile_code" not in sys.modules
    assert run(*design, "--allow-code").code == 0
    assert "hostile_code" in sys.modules
