"""Tables of docs/replication.md that depend on measurements alone are those computed now; the bill's columns follow the packaged rates."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "replication.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> dict:
    return runpy.run_path(str(ROOT / "docs" / "replication.py"))


def section(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", PAGE, re.DOTALL)
    assert found, name
    return found[1]


def without_last_column(table: str) -> list[str]:
    return [line.rsplit(" | ", 1)[0] for line in table.splitlines()]


def test_the_knees_measured_and_published(script: dict) -> None:
    found = script["measured"]()
    now = script["knee_table"](script["published"](), found, found)
    assert without_last_column(section("knees")) == without_last_column(now)
    assert len({model for model, _ in found}) == 9


def test_the_three_parameter_fit(script: dict) -> None:
    assert section("three-parameter") == script["fit_table"]()


@pytest.mark.parametrize(
    ("ratio", "theirs", "agrees"),
    [("1.2", 1.5, True), ("0.9", 1.5, False), ("> 1.1", 1.5, True), ("> 0.9", 1.5, False), ("> 1.1", 0.9, False), ("< 0.9", 0.8, True)],
)
def test_a_bound_settles_a_direction_only_on_its_side(script: dict, ratio: str, theirs: float, agrees: bool) -> None:
    assert script["_agrees"](ratio, theirs) is agrees
