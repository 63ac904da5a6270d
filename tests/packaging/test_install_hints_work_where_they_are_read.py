"""What a message says to install works from a checkout and from a wheel: the checkout's extra, or the packages the wheel asks for."""

import importlib.metadata
import tomllib

import pytest

from sim import extras
from tests.docs.pages import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["calibrate", "gpu", "engine", "engine-cpu", "report", "sweep"])
def test_a_checkout_names_itself_and_a_wheel_its_packages(extra, monkeypatch, tmp_path):
    assert extras.install_hint(extra) == f"pip install -e '{ROOT}[{extra}]'"
    monkeypatch.setattr(extras, "ROOT", tmp_path)
    told = [f"{name.partition(';')[0]}; extra == '{key}'" for key, names in EXTRAS.items() for name in names]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["numpy>=2", *told])
    hint = extras.install_hint(extra)
    assert "llm-simctl[" not in hint
    assert all(name.partition(";")[0].strip() in hint for name in EXTRAS[extra])


def test_no_message_names_an_extra_otherwise():
    sources = [p for folder in ("sim", "simctl", "calibrate", "hw", "studies") for p in (ROOT / folder).rglob("*.py")]
    assert [p.name for p in sources if "llm-simctl[" in p.read_text()] == []
