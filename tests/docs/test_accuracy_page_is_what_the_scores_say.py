"""Tables of docs/accuracy.md are those that docs/accuracy.py computes from the packaged posteriors and docs/data/validate.csv."""

import re
import runpy

import pytest

from tests.docs.pages import ROOT, text_of

SCRIPT = runpy.run_path(str(ROOT / "docs" / "accuracy.py"))


@pytest.mark.parametrize("name", ["first", "left-out", "by-load", "served", "held-out", "field"])
def test_table_is_current(name):
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", text_of(ROOT / "docs" / "accuracy.md"), re.DOTALL)
    assert found
    assert found[1] == SCRIPT["tables"]()[name]


def test_replicates_are_one_load():
    assert {SCRIPT["load_of"](name) for name in ("open 8/s", "open 8/s again", "text 10/s")} == {"open"}
    assert {SCRIPT["load_of"](name) for name in ("closed 16x4", "closed 16x4 again 3")} == {"closed"}
