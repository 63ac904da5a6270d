"""No test waits for less than a minute, and no property has a deadline: a machine may have other things to do."""

import re
from pathlib import Path

from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parents[1]
WAITS = re.compile(r"(?:timeout=|monotonic\(\) \+ |\.(?:wait|join|result)\()(\d+(?:\.\d+)?)")


def test_properties_have_no_deadline():
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
    assert [path.name for path in TESTS.rglob("*.py") if re.search(r"\bdeadline=\d", path.read_text())] == []


def test_waits_are_long():
    found = {f"{path.name}: {each[0]}": float(each[1]) for path in TESTS.rglob("*.py") for each in WAITS.finditer(path.read_text())}
    assert len(found) > 3
    assert {name: wait for name, wait in found.items() if wait < 60} == {}
