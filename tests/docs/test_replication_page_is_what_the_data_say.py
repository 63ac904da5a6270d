"""Tables of docs/replication.md, and its file of knees, are those computed now; the predicted column follows the rates."""

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
    now = script["knee_table"](script["published_knees"](), found, found)
    assert without_last_column(script["KNEES"].read_text(encoding="utf-8")) == without_last_column(now)
    assert len({model for model, _ in found}) == 9


def test_the_three_parameter_fit(script: dict) -> None:
    assert section("three-parameter") == script["fit_table"]()
