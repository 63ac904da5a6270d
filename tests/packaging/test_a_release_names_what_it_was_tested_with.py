"""A release: a wheel whose two builds are alike, constraints that pin all that it needs, and a bill of materials of just these."""

import hashlib
import json
from importlib.metadata import version

from packaging.requirements import Requirement

from studies import release


def test_constraints_and_bill_name_the_same_packages(tmp_path):
    assert release.main(["-o", str(tmp_path)]) == 0
    (wheel,) = tmp_path.glob("*.whl")
    pins = {
        each.name: next(iter(each.specifier)).version for each in map(Requirement, (tmp_path / "constraints.txt").read_text().splitlines())
    }
    bill = json.loads((tmp_path / "sbom.json").read_text())
    assert {each["name"]: each["version"] for each in bill["components"]} == pins
    assert {"numpy", "scipy", "click", "python-dateutil"} <= set(pins)  # the last is needed by what is needed
    assert pins["numpy"] == version("numpy")
    assert bill["metadata"]["component"]["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_builds_that_differ_are_no_release(tmp_path, monkeypatch, capsys):
    def unlike(folder):
        wheel = folder / "llm_simctl-1-py3-none-any.whl"
        wheel.write_text(str(folder))
        return wheel

    monkeypatch.setattr(release, "built", unlike)
    assert release.main(["-o", str(tmp_path / "dist")]) == 1
    assert "two builds of one commit differ" in capsys.readouterr().err
    assert not list((tmp_path / "dist").iterdir())
