"""docs/models.md and docs/gpus.md are what the commands print."""

from pathlib import Path

import pytest

from simctl.cli import main

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["models", "gpus"])
def test_document_is_current(name, capsys):
    main([name, "--markdown"])
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == capsys.readouterr().out, f"run: simctl {name} --markdown > docs/{name}.md"
