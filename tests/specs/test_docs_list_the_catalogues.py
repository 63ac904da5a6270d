"""docs/models.md and docs/gpus.md are what the commands print."""

from pathlib import Path

import pytest

from tests.cli import run

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["models", "gpus"])
def test_document_is_current(name):
    printed = run(name, "--markdown").stdout
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == printed, f"run: simctl {name} --markdown > docs/{name}.md"
