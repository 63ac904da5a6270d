"""Tables of docs/replication.md, and its file of knees, are those computed now; the predicted column follows the rates."""

import re
from pathlib import Path

from studies.replication import knees_page

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "replication.md").read_text(encoding="utf-8")


def section(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", PAGE, re.DOTALL)
    assert found, name
    return found[1]


def without_last_column(table: str) -> list[str]:
    return [line.rsplit(" | ", 1)[0] for line in table.splitlines()]


def test_the_knees_measured_and_published() -> None:
    found = knees_page.measured()
    now = knees_page.knee_table(knees_page.published_knees(), found, found)
    assert without_last_column(knees_page.KNEES.read_text(encoding="utf-8")) == without_last_column(now)
    assert len({model for model, _ in found}) == 9


def test_the_three_parameter_fit() -> None:
    assert section("three-parameter") == knees_page.fit_table()
