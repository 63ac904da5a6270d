"""Console blocks in the documentation show what their commands print today."""

import pytest

from tests.docs.pages import PAGES, name_of, refresh, text_of


def blocks():
    for path in PAGES:
        for found in refresh.BLOCK.finditer(text_of(path)):
            marks = [pytest.mark.slow] if found["slow"] else []
            yield pytest.param(found["command"], found["output"], id=f"{name_of(path)}: {found['command']}", marks=marks)


@pytest.mark.parametrize(("command", "shown"), list(blocks()))
def test_block_is_current(command, shown):
    assert refresh.printed(command) == shown


@pytest.mark.parametrize("folder", sorted(refresh.RUNS))
def test_a_run_that_blocks_read_is_shown(folder):
    assert any(refresh.RUNS[folder] in text_of(path) for path in PAGES)


@pytest.mark.parametrize("name", sorted(refresh.DATA))
def test_long_output_names_its_command(name):
    assert (refresh.ROOT / "docs" / "data" / name).read_text(encoding="utf-8").startswith(f"$ {refresh.DATA[name]}\n")
